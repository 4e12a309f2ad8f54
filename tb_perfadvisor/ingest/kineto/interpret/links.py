"""Links backward nodes to forward operators, and corrects rounded durations."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.trace.integer_groups import distinct, is_in, places_by_value, unique_inverse
from tb_perfadvisor.trace.nesting import enclosing_rows, start_order

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

    Returns:
        The durations; shape (n,).
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

    Returns:
        The durations, shape (n,), and how many calls were shortened.
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

    Returns:
        Rows of backward nodes and of their forward operators.
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
