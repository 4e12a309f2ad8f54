"""The kinds of events, kernels and copies, and what links them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.ingest.host_names import range_kind
from tb_perfadvisor.ingest.kernels.kernel_names import classify_kernels
from tb_perfadvisor.ingest.kineto.decode.columns import KinetoColumns
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.trace import Assembler, CopyDirection, EventKind
from tb_perfadvisor.trace.integer_groups import distinct, is_in, places_by_value, unique_inverse
from tb_perfadvisor.trace.nesting import enclosing_rows, start_order

_COMPILE_FRAME = regex(
    r"torch/_dynamo/convert_frame\.py\(\d+\): (?:_compile|compile_inner|_compile_inner)$"
    r"|torch/utils/cpp_extension\.py\(\d+\): (?:load|load_inline|_jit_compile)$"
    r"|triton/compiler/compiler\.py\(\d+\): compile$"
)
"""Frames that trace and compile code, or build and load an extension."""


def host_kind(category: str, name: str) -> EventKind:
    """The kind of an event on a host thread."""
    if category == "overhead":
        return EventKind.OVERHEAD
    if category == "python_function":
        return EventKind.COMPILE if _COMPILE_FRAME.search(name) else EventKind.PYTHON
    return range_kind(name, is_annotation=category == "user_annotation")


_MTIA_KINDS = {
    "dma_request": EventKind.COPY,
    "event_record": EventKind.DEVICE_SYNC,
    "event_wait": EventKind.DEVICE_SYNC,
}
_DEVICE_KINDS = {
    "gpu_memcpy": EventKind.COPY,
    "Memcpy": EventKind.COPY,
    "gpu_memset": EventKind.MEMSET,
    "Memset": EventKind.MEMSET,
    "gpu_user_annotation": EventKind.DEVICE_ANNOTATION,
    "cuda_sync": EventKind.DEVICE_SYNC,
}


def device_kind(category: str, name: str) -> EventKind:
    """The kind of an event on a device's stream; does not distinguish kernels by name."""
    if category == "mtia_ccp_events":
        return _MTIA_KINDS.get(name, EventKind.KERNEL)
    return _DEVICE_KINDS.get(category, EventKind.KERNEL)


class CopyName(Struct, frozen=True):
    """The attributes in the name of a copy."""

    direction: CopyDirection
    pageable: int


_ENDS = regex(r"\((?P<source>[^()]*?)(?<! ) *-> *(?! )(?P<target>[^()]*)\)")
_SHORT = regex(r"([HDPA])[to2]+([HDPA])", re.IGNORECASE)
_DIRECTIONS = {
    "HD": CopyDirection.HOST_TO_DEVICE,
    "DH": CopyDirection.DEVICE_TO_HOST,
    "DD": CopyDirection.DEVICE_TO_DEVICE,
    "PP": CopyDirection.PEER_TO_PEER,
    "HH": CopyDirection.HOST_TO_HOST,
    # CUDA arrays are in device memory.
    "HA": CopyDirection.HOST_TO_DEVICE,
    "AH": CopyDirection.DEVICE_TO_HOST,
    "AD": CopyDirection.DEVICE_TO_DEVICE,
    "DA": CopyDirection.DEVICE_TO_DEVICE,
    "AA": CopyDirection.DEVICE_TO_DEVICE,
}


def parse_copy_name(name: str) -> CopyName:
    """Parse a name such as `Memcpy HtoD (Pageable -> Device)`."""
    ends = _ENDS.search(name)
    pageable = -1
    if ends:
        memories = {ends["source"].strip().lower(), ends["target"].strip().lower()}
        if "pageable" in memories:
            pageable = 1
        elif "pinned" in memories:
            pageable = 0
    short = _SHORT.search(name.removeprefix("Memcpy"))
    letters = "".join(short.groups()).upper() if short else ""
    return CopyName(_DIRECTIONS.get(letters, CopyDirection.UNKNOWN), pageable)


_MTIA_DIRECTIONS = {
    "HOST_TO_DEVICE": CopyDirection.HOST_TO_DEVICE,
    "DEVICE_TO_HOST": CopyDirection.DEVICE_TO_HOST,
    "DEVICE_TO_DEVICE": CopyDirection.DEVICE_TO_DEVICE,
}


def add_kernels(
    assembler: Assembler,
    collected: KinetoColumns,
    kind: NDArray[np.uint8],
    texts: Sequence[str],
) -> None:
    """Add attributes of compute kernels and of collectives that run as kernels."""
    device = collected.device
    rows = device["row"]
    is_kernel = is_in(kind[rows], (EventKind.KERNEL, EventKind.COLLECTIVE))
    if not is_kernel.any():
        return
    rows = rows[is_kernel]
    names, of_row = unique_inverse(collected.events["name"][rows])
    classified = classify_kernels([texts[name] for name in names.tolist()])
    occupancy = device["occupancy_percent"][is_kernel] / 100
    assembler.add_kernels(
        rows,
        family=classified.family[of_row],
        precision=classified.precision[of_row],
        tensor_cores=classified.tensor_cores[of_row],
        grid_blocks=device["grid_blocks"][is_kernel],
        block_threads=_int32(device["block_threads"][is_kernel]),
        registers=_int32(device["registers"][is_kernel]),
        shared_memory_bytes=device["shared_memory"][is_kernel],
        occupancy_share=np.where((occupancy >= 0) & (occupancy <= 1), occupancy, np.nan),
    )


def add_copies(
    assembler: Assembler,
    collected: KinetoColumns,
    kind: NDArray[np.uint8],
    texts: Sequence[str],
) -> None:
    """Add direction, size and pageability of copies."""
    device = collected.device
    is_copy = kind[device["row"]] == EventKind.COPY
    if not is_copy.any():
        return
    rows = device["row"][is_copy]
    names, of_row = unique_inverse(collected.events["name"][rows])
    parsed = [parse_copy_name(texts[name]) for name in names.tolist()]
    direction = np.array([copy.direction for copy in parsed], dtype=np.uint8)[of_row]
    # Some devices have the direction in an argument instead of the name.
    arguments, of_argument = unique_inverse(device["direction"][is_copy])
    by_argument = np.array(
        [_MTIA_DIRECTIONS.get(texts[index], CopyDirection.UNKNOWN) for index in arguments.tolist()],
        dtype=np.uint8,
    )[of_argument]
    assembler.add_copies(
        rows,
        direction=np.where(direction == CopyDirection.UNKNOWN, by_argument, direction),
        size_bytes=device["bytes"][is_copy],
        pageable=np.array([copy.pageable for copy in parsed], dtype=np.int8)[of_row],
    )


def _int32(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Replace impossible counts of threads or registers by -1."""
    return np.where((values >= 0) & (values < 2**31), values, -1)


Int64 = NDArray[np.int64]

# Versions that write whole microseconds round start and duration separately, so a child may end up
# to a microsecond after its parent. With nanoseconds, the difference is smaller.
ROUNDING_NS = 1000
# Nested events that all end with the outermost one need one pass per level.
_MAX_PASSES = 64


def clamp_overhangs(
    start_ns: Int64, duration_ns: Int64, track: NDArray[np.int32], is_host: NDArray[np.bool_]
) -> Int64:
    """Shorten host events that end after their parent because of rounding.

    Larger overhangs than `ROUNDING_NS`, and events that are mostly outside of the other one, are
    real overlaps and stay.

    Returns the durations, of shape (n,).
    """
    result: Int64 = duration_ns.copy()
    rows = np.flatnonzero(is_host)
    if rows.size == 0:
        return result
    order = rows[start_order(start_ns[rows], duration_ns[rows])]
    start, tracks = start_ns[order], track[order]
    end = start + duration_ns[order]
    for _ in range(_MAX_PASSES):
        # The parent must reach beyond the start, and to the end except for rounding.
        needed = np.maximum(end - ROUNDING_NS, np.minimum(start + 1, end))
        parent = enclosing_rows(start, end, tracks, needed_ns=needed)
        reach = np.where(parent >= 0, end[parent], end)
        overhang = end - reach
        clamp = (overhang > 0) & (reach - start > overhang)
        if not clamp.any():
            break
        end[clamp] = reach[clamp]
    result[order] = end - start
    return result


def ended_with_callers(
    start_ns: Int64, duration_ns: Int64, track: NDArray[np.int32], frames: Mapping[str, Int64]
) -> tuple[Int64, int]:
    """Shorten calls of Python functions that outlast their callers, which the file states.

    A call whose end the profiler missed lasts until the recording ends, so by its times all that
    follows would be inside it. It ended when its caller did, or called something else, at the
    latest.

    Returns the durations, of shape (n,), and how many calls were shortened.
    """
    row, numbers = frames["row"], frames["frame"]
    known = np.flatnonzero(numbers >= 0)
    if not len(known):
        return duration_ns, 0
    order = known[np.argsort(numbers[known], kind="stable")]
    slot = np.minimum(np.searchsorted(numbers[order], frames["caller"]), len(order) - 1)
    caller = np.where(numbers[order[slot]] == frames["caller"], order[slot], -1)
    start, end = start_ns[row], start_ns[row] + duration_ns[row]
    is_called = (caller >= 0) & (track[row[caller]] == track[row]) & (start >= start[caller])
    late = np.flatnonzero(is_called & (end > end[caller] + ROUNDING_NS))
    # Without an end, a call lasts as long as the last event of its thread.
    last_ns = np.full(int(track.max()) + 1, 0)
    np.maximum.at(last_ns, track[row], end)
    late = np.union1d(late, np.flatnonzero(is_called & (end >= last_ns[track[row]] - ROUNDING_NS)))
    # The next call by the same caller.
    among = np.flatnonzero(is_called & is_in(caller, distinct(caller[late])))
    among = among[np.lexsort((start[among], caller[among]))]
    is_next = caller[among[1:]] == caller[among[:-1]]
    until = end.copy()
    until[among[:-1][is_next]] = start[among[1:][is_next]]
    end[late] = np.minimum(end[late], np.maximum(until[late], start[late]))
    called = np.flatnonzero(is_called)
    for _ in range(_MAX_PASSES):
        over = called[end[called] > end[caller[called]] + ROUNDING_NS]
        if not len(over):
            break
        end[over] = np.maximum(end[caller[over]], start[over])
    shorter = end < start + duration_ns[row]
    result = duration_ns.copy()
    result[row] = end - start
    return result, int(np.count_nonzero(shorter))


def forward_links(
    row: Int64, sequence: Int64, forward_thread: Int64, thread: NDArray[np.int32], start_ns: Int64
) -> tuple[Int64, Int64]:
    """Link backward nodes to forward operators by autograd's sequence number.

    A backward node has a sequence number and the number of the forward thread (`Fwd thread id`,
    positive, and not a thread id of the system). Nested operators share a sequence number, because
    they read it at their start and the innermost one consumes it. So the forward operator is the
    last one of the thread with the number that started before the backward node.

    Returns rows of backward nodes and of their forward operators.
    """
    known = np.flatnonzero(sequence >= 0)
    is_backward = forward_thread[known] > 0
    line = _forward_lines(sequence[known], forward_thread[known], thread[known], start_ns[known])
    order = np.lexsort((is_backward, start_ns[known], sequence[known], line))
    known, is_backward, line = known[order], is_backward[order], line[order]
    position = np.arange(known.size)
    last_forward = (
        np.maximum.accumulate(np.where(is_backward, -1, position)) if known.size else position
    )
    joined = np.flatnonzero(is_backward & (last_forward >= 0))
    forward, backward = last_forward[joined], joined
    same = (sequence[known[forward]] == sequence[known[backward]]) & (
        line[forward] == line[backward]
    )
    return row[known[backward[same]]], row[known[forward[same]]]


_MAX_REPLICAS = 64
"""Forward threads of one process, and threads that count: one for each of its devices."""


def _forward_lines(
    sequence: Int64, forward_thread: Int64, thread: NDArray[np.int32], start_ns: Int64
) -> NDArray[np.int32]:
    """The thread that counted each operator's sequence number; shape (n,).

    Each thread has its own count, such as the replicas of `nn.DataParallel`. No field says which
    system thread a `Fwd thread id` is: take the thread that has most of its numbers. On ties, take
    the next one in order of the first record, because both ids are assigned in that order.
    """
    line: NDArray[np.int32] = thread.copy()
    is_backward = forward_thread > 0
    threads, slot = unique_inverse(thread[~is_backward])
    if threads.size < 2:
        return np.zeros(thread.size, dtype=np.int32)
    first_ns = np.full(threads.size, np.iinfo(np.int64).max)
    np.minimum.at(first_ns, slot, start_ns[~is_backward])
    # Only the busiest threads, in their order: each is compared with each backward thread.
    busiest = np.argsort(-np.bincount(slot), kind="stable")[:_MAX_REPLICAS]
    in_order = threads[busiest[np.argsort(first_ns[busiest], kind="stable")]].tolist()
    numbers = {key: distinct(sequence[~is_backward & (thread == key)]) for key in in_order}
    assigned: set[int] = set()
    line[is_backward] = -1
    backward = np.flatnonzero(is_backward)
    for count, (_, places) in enumerate(places_by_value(forward_thread[backward])):
        if count >= _MAX_REPLICAS:
            break
        members = backward[places]
        wanted = distinct(sequence[members])
        best = max(
            in_order,
            key=lambda key: (int(np.isin(wanted, numbers[key]).sum()), key not in assigned),
            default=-1,
        )
        assigned.add(best)
        line[members] = best
    return line
