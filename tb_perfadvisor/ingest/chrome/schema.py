"""The fields of a Chrome export that are read; everything else is skipped by the decoder.

Fields are `Any`: exporters write every argument as text, and damage may put anything anywhere.
The arguments are the stats of the xplane under their own names, and a few more.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

TEXTS: Final = frozenset(
    {
        *("eager_op", "tf_function_call", "hlo_op", "hlo_module", "shape", "allocator_name"),
        *("kernel_details", "memcpy_details", "memset_details"),
    }
)
FLOATS: Final = frozenset({"occupancy_pct"})
INTEGERS: Final = frozenset(
    {
        *("correlation_id", "step_num", "group_id", "_pt", "_p", "_ct", "_c", "is_func"),
        *("program_id", "index_on_host", "bytes_allocated", "bytes_reserved"),
        *("bytes_available", "allocation_bytes", "addr"),
        *("device_offset_ps", "device_duration_ps"),
    }
)
"""With the above, every stat of events that the xplane reader uses."""

KIND_TEXTS: Final = ("hlo_category", "tf_op", "source", "shape_with_layout")
KIND_INTEGERS: Final = ("flops", "bytes_accessed")
"""With the above, what describes an XLA operation: in an xplane it stands once per operation."""

# Of metadata events, and of nodes in timelines of TensorFlow 1; the whole name where the event has
# a short one, as it is spelled since TensorFlow 2.2 and before; and what kernels and copies say of
# themselves before.
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
