"""Which kernels are collectives, by their names and by what surrounds them.

Counts unknown kernels as collectives if their stream otherwise only communicates.

New communication libraries appear faster than the table of kernel names grows. An unknown kernel
next to known collectives on a separate stream, while another stream computes, is more likely
communication than compute. A note says that this is a guess.
"""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_perfadvisor.note import Note
from tb_perfadvisor.trace import EventKind, KernelFamily, Trace, TrackKind
from tb_perfadvisor.trace.integer_groups import distinct, unique_inverse
from tb_perfadvisor.trace.tables import CollectiveTable, Float64, Int32
from tb_perfadvisor.units import format_duration

# Reductions within a warp, block or wave have similar names.
_ALL_REDUCE: Final = r"(?<!warp)(?<!warp_)(?<!block)(?<!block_)(?<!wave)(?<!wave_)all_?reduce"

_LIBRARIES: Final = (
    r"(?i)(?:^|[^a-z])(?:nccl|rccl|hccl|mccl|msccl|mscclpp|oneccl|pccl)"
    r"|nccl(?:Dev)?Kernel|ncclSym|oneapi::ccl|^hcom_|nvshmem|userbuffers"
    r"|cross_device_reduce|(?:one|two)_?shot_\w{0,60}reduce|multimem_|lamport|quick_?reduce"
    r"|deep_?ep|(?:intra|inter)node(?:_ll)?::|ep::\w*(?:dispatch|combine)"
)
_OPERATIONS: Final = (
    rf"(?i){_ALL_REDUCE}|all_?gather|reduce_?scatter|(?<![a-z])all_?to_?all|alltoallv?_"
    r"|moe_?a2a|(?:^|[ :])ep(?:dispatch|combine)\w*kernel"
)
# Every name that matches one of the two patterns contains at least one of these words in lower
# case. Checking the words first takes a fifth of the time of the patterns, which are compiled only
# when needed.
WORDS: Final = (
    *("ccl", "hcom_", "nvshmem", "userbuffers", "cross_device_reduce", "shot_", "multimem_"),
    *("lamport", "quick", "deep", "node", "ep::", "allre", "all_re", "allga", "all_ga", "allto"),
    *("all_to", "scatter", "a2a", "epdispatch", "epcombine"),
)
# Compilers name a kernel after everything fused into it: `triton_poi_fused_all_gather_…` only
# processes the result of a collective.
_COMPILED: Final = r"triton_[a-z]{3}_fused|(?:loop|input)_\w*fusion"
_LOCAL: Final = r"(?i)(?:void )?(?:at::native|at_cuda_detail|c10d|cub|thrust|rocprim)::"
_COPIES: Final = r"(?i)(?:hip|cuda)?mem(?:cpy|set)"

_BY_OPERATION: Final = (
    (r"(?i)reduce_?scatter", "reduce-scatter"),
    (r"(?i)all_?gather", "all-gather"),
    (r"(?i)all_?to_?all|(?<![a-z])a2a|dispatch|combine", "all-to-all"),
    (r"(?i)all_?reduce|cross_device_reduce|(?:one|two)_?shot|quick_?reduce|lamport", "all-reduce"),
    (r"(?i)broadcast", "broadcast"),
    (r"(?i)send_?recv|_send|_recv|p2p", "send-recv"),
    (r"(?i)reduce", "reduce"),
)


def is_collective(name: str) -> bool:
    """Whether a kernel communicates with other devices, according to its name."""
    lower = name.lower()
    if not any(word in lower for word in WORDS):
        return False
    if re.match(_COMPILED, name) or re.match(_COPIES, name):
        return False
    if re.search(_LIBRARIES, name):
        return True
    # PyTorch's symmetric-memory kernels share namespaces with kernels that do not communicate.
    return re.match(_LOCAL, name) is None and re.search(_OPERATIONS, name) is not None


def collective_operation(name: str) -> str:
    """The operation of a communication kernel.

    It is `all-reduce`, `all-gather`, `reduce-scatter`, `all-to-all`, `broadcast`, `reduce`,
    `send-recv`, or `unknown`.
    """
    for pattern, operation in _BY_OPERATION:
        if re.search(pattern, name):
            return operation
    return "unknown"


# NCCL has one kernel per type for reductions, named after the type, and one for all types where it
# only moves bytes. The values are PyTorch's names of the types (c10/core/ScalarType.h).
_REDUCING: Final = r"(?i)(?:All_?Reduce|Reduce_?Scatter|(?<!All)Reduce)"
_TYPE: Final = (
    r"(?i)_(?:sum|prod|min|max|minmax|premulsum|sumpostdiv)_"
    r"(__nv_bfloat16|hip_bfloat16|rccl_bfloat16|bf16|half|f16|float|f32|double|f64)(?![a-z0-9])"
)
_TYPES: Final = {
    **dict.fromkeys(("bf16", "__nv_bfloat16", "hip_bfloat16", "rccl_bfloat16"), "BFloat16"),
    **dict.fromkeys(("f16", "half"), "Half"),
    **dict.fromkeys(("f32", "float"), "Float"),
    **dict.fromkeys(("f64", "double"), "Double"),
}


def collective_dtype(name: str) -> str:
    """The floating-point type in the name of a reducing kernel; empty if there is none."""
    match = re.search(_TYPE, name) if re.search(_REDUCING, name) else None
    return _TYPES[match[1].lower()] if match else ""


_MIN_COMMUNICATION_SHARE: Final = 0.9
"""Of the time of a stream's known kernels. The rest allows for packing and unpacking buffers."""
_MIN_COLLECTIVES: Final = 2
"""A single collective may run on any stream."""
_MAX_NAMES: Final = 3


def with_probable_collectives(trace: Trace) -> Trace:
    """Turn unknown kernels that probably communicate into collectives, and add a note.

    The trace is one of GPUs, whose kernels run on streams.
    """
    rows = _probable_collectives(trace)
    if not rows.size:
        return trace
    events, kernels = trace.events, trace.kernels
    kind, family = events.kind.copy(), kernels.family.copy()
    kind[rows] = EventKind.COLLECTIVE
    family[np.isin(kernels.row, rows)] = KernelFamily.COLLECTIVE
    for column in (kind, family):
        column.setflags(write=False)
    return replace(
        trace,
        events=replace(events, kind=kind),
        kernels=replace(kernels, family=family),
        collectives=_with_rows(trace.collectives, rows),
        notes=(*trace.notes, _note(trace, rows)),
    )


def _probable_collectives(trace: Trace) -> Int32:
    """The rows of unknown kernels that probably communicate."""
    none: Int32 = np.empty(0, dtype=np.int32)
    events, kernels = trace.events, trace.kernels
    collectives = trace.rows(EventKind.COLLECTIVE)
    count = np.bincount(events.track[collectives], minlength=len(trace.tracks))
    if not (count >= _MIN_COLLECTIVES).any():
        return none
    is_compute = events.kind[kernels.row] == EventKind.KERNEL
    known = kernels.row[is_compute & (kernels.family != KernelFamily.OTHER)]
    unknown = kernels.row[is_compute & (kernels.family == KernelFamily.OTHER)]
    if not unknown.size:
        return none

    def time_by_track(rows: Int32) -> Float64:
        time_ns = np.zeros(len(trace.tracks))
        np.add.at(time_ns, events.track[rows], events.duration_ns[rows])
        return time_ns

    communicating, computing = time_by_track(collectives), time_by_track(known)
    chosen = (trace.tracks.kind == TrackKind.DEVICE_STREAM) & (count >= _MIN_COLLECTIVES)
    chosen &= communicating >= _MIN_COMMUNICATION_SHARE * (communicating + computing)
    chosen &= time_by_track(unknown) <= communicating
    # If nothing computes on the device's other streams, the unknown kernels may be its compute.
    computing_devices = distinct(trace.tracks.device[(computing > 0) & ~chosen])
    chosen &= np.isin(trace.tracks.device, computing_devices)
    probable: Int32 = unknown[chosen[events.track[unknown]]]
    return probable


def _with_rows(table: CollectiveTable, rows: Int32) -> CollectiveTable:
    """The table with more collectives, of which only the time is known."""
    merged = np.concatenate([table.row, rows])
    order = np.argsort(merged, kind="stable")
    columns: dict[str, NDArray[Any]] = {}
    for name in table.__struct_fields__:
        column = getattr(table, name)
        added = rows if name == "row" else np.full(len(rows), -1, dtype=column.dtype)
        columns[name] = np.concatenate([column, added])[order].astype(column.dtype)
        columns[name].setflags(write=False)
    return CollectiveTable(**columns)


def _note(trace: Trace, rows: Int32) -> Note:
    events = trace.events
    names, of_row = unique_inverse(events.name[rows])
    time_ns = np.bincount(of_row, weights=events.duration_ns[rows])
    longest = names[np.argsort(-time_ns, kind="stable")]
    named = ", ".join(trace.text(int(name))[:80] for name in longest[:_MAX_NAMES])
    more = f" and {len(longest) - _MAX_NAMES} more" if len(longest) > _MAX_NAMES else ""
    count = len(rows)
    kernels = (
        "1 kernel of an unknown library"
        if count == 1
        else f"{count:,} kernels of unknown libraries"
    )
    return Note(
        "probable-communication",
        "info",
        f"{kernels} ({named}{more}) ran on streams that otherwise only communicate: "
        f"{format_duration(float(time_ns.sum()))} count as communication.",
        "Report the library that the kernels belong to, so that it can be recognized by name.",
    )
