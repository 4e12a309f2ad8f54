"""What belongs to what: enclosing events within rounding, backward nodes and forward operators."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.trace.integer_groups import distinct, unique_inverse
from tb_perfadvisor.trace.nesting import enclosing_rows, start_order

Int64 = NDArray[np.int64]

# Versions that write whole microseconds round start and duration apart, so that a child may
# end up to a microsecond after its parent; in those with nanoseconds it happens by a few.
ROUNDING_NS = 1000
# A chain of children that all end with their outermost parent needs one pass per level.
_MAX_PASSES = 64


def clamp_overhangs(
    start_ns: Int64, duration_ns: Int64, track: NDArray[np.int32], is_host: NDArray[np.bool_]
) -> Int64:
    """Shorten host events that overhang the one they are in by no more than rounding.

    An overhang beyond `ROUNDING_NS`, or of an event that is more outside than inside, is left:
    it is a true overlap.

    Returns:
        Shape (n,): the durations.
    """
    result: Int64 = duration_ns.copy()
    rows = np.flatnonzero(is_host)
    if rows.size == 0:
        return result
    order = rows[start_order(start_ns[rows], duration_ns[rows])]
    start, tracks = start_ns[order], track[order]
    end = start + duration_ns[order]
    for _ in range(_MAX_PASSES):
        # Whoever reaches to within rounding of my end, and beyond my start, would be my parent.
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


def forward_links(
    row: Int64, sequence: Int64, forward_thread: Int64, thread: NDArray[np.int32], start_ns: Int64
) -> tuple[Int64, Int64]:
    """Join backward nodes to forward operators by autograd's sequence number.

    A backward node has a sequence number and the number of the thread that recorded it
    forward (`Fwd thread id`, above 0 and not a thread id of the system). Its forward operator
    is the last one of that thread with that sequence number that started before it: several
    operators have it, since the number is read at their start and the innermost takes it.

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


def _forward_lines(
    sequence: Int64, forward_thread: Int64, thread: NDArray[np.int32], start_ns: Int64
) -> NDArray[np.int32]:
    """The thread on which each operator's sequence number was counted; shape (n,).

    Each thread counts for itself, as replicas of `nn.DataParallel` do, each in a thread of its
    own. Which system thread a `Fwd thread id` is, no field says: it is the one that has most of
    its numbers; of equals the next in order, as both are numbered when they first record.
    """
    line: NDArray[np.int32] = thread.copy()
    is_backward = forward_thread > 0
    own, slot = unique_inverse(thread[~is_backward])
    if own.size < 2:
        return np.zeros(thread.size, dtype=np.int32)
    begun = np.full(own.size, np.iinfo(np.int64).max)
    np.minimum.at(begun, slot, start_ns[~is_backward])
    start_order = own[np.argsort(begun, kind="stable")].tolist()
    numbers = {key: distinct(sequence[~is_backward & (thread == key)]) for key in start_order}
    taken: set[int] = set()
    for number in distinct(forward_thread[is_backward]).tolist():
        members = is_backward & (forward_thread == number)
        wanted = distinct(sequence[members])
        best = max(
            start_order,
            key=lambda key: (int(np.isin(wanted, numbers[key]).sum()), key not in taken),
            default=-1,
        )
        taken.add(best)
        line[members] = best
    return line
