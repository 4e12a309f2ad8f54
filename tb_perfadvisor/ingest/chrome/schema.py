"""The fields of a Chrome export that are used; the decoder skips everything else.

Fields are `Any`, because exporters write every argument as text, and damaged files may contain
any type. The arguments have the names of the xplane's stats.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

TEXTS: Final = frozenset(
    {
        *("eager_op", "tf_function_call", "hlo_op", "hlo_module", "shape", "allocator_name"),
        *("kernel_details", "memcpy_details", "memset_details"),
        *("autotune", "shapes", "types"),
    }
)
FLOATS: Final = frozenset({"occupancy_pct"})
INTEGERS: Final = frozenset(
    {
        *("correlation_id", "step_num", "group_id", "_pt", "_p", "_ct", "_c", "is_func"),
        *("program_id", "index_on_host", "bytes_allocated", "bytes_reserved"),
        *("bytes_available", "allocation_bytes", "addr"),
        *("device_offset_ps", "device_duration_ps", "run_id", "device_ordinal"),
        *("id", "parent_id", "parallelism", "batch_size", "buffer_limit", "buffer_size"),
        *("buffered_elements", "buffered_bytes_MB", "cpu_budget", "threadpool_size"),
        "ram_budget_megabytes",
    }
)
"""Together with the above, all stats of events that the xplane reader uses, but for the `name` of
an iterator's dataset: other events have arguments of that name."""

KIND_TEXTS: Final = ("hlo_category", "tf_op", "source", "shape_with_layout")
KIND_INTEGERS: Final = ("flops", "bytes_accessed")
"""With the above, the attributes of XLA operations, which an xplane has once per operation."""

# Names in metadata events and in nodes of TensorFlow 1, the complete name of events (in its new and
# old spelling), and the old label of kernels and copies.
_OTHERS: Final = ("name", "sort_index", "long_name", "old_long_name", "label")

Arguments: Any = msgspec.defstruct(
    "Arguments",
    [
        (name, Any, None)
        for name in sorted({*TEXTS, *FLOATS, *INTEGERS, *KIND_TEXTS, *KIND_INTEGERS, *_OTHERS})
    ],
    rename={"old_long_name": "long name"},
    gc=False,
    module=__name__,
)
"""`args` of an event."""


class ChromeEvent(msgspec.Struct, gc=False):
    """One entry of `traceEvents`."""

    ph: Any = None
    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    args: Arguments | None = None
