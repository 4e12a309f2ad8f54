"""What belongs to what: enclosing events within rounding, backward nodes and forward operators."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.trace.assembler import nesting

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
    order = rows[np.lexsort((-duration_ns[rows], start_ns[rows]))]
    start, tracks = start_ns[order], track[order]
    end = start + duration_ns[order]
    for _ in range(_MAX_PASSES):
        # Whoever reaches to within rounding of my end, and beyond my start, would be my parent.
        needed = np.maximum(end - ROUNDING_NS, np.minimum(start + 1, end))
        parent = nesting(start, end, tracks, needed_ns=needed)
        reach = np.where(parent >= 0, end[parent], end)
        overhang = end - reach
        clamp = (overhang > 0) & (reach - start > overhang)
        if not clamp.any():
            break
        end[clamp] = reach[clamp]
    result[order] = end - start
    return result


def forward_links(
    row: Int64, sequence: Int64, is_backward: NDArray[np.bool_], start_ns: Int64
) -> tuple[Int64, Int64]:
    """Join backward nodes to forward operators by autograd's sequence number.

    A backward node has a sequence number and the number of the thread that recorded it
    forward (`Fwd thread id`, above 0 and not a thread id of the system). Its forward operator
    is the last one with that sequence number that started before it: several operators have
    it, since the number is read at their start and the innermost takes it.

    Returns:
        Rows of backward nodes and of their forward operators.
    """
    known = np.flatnonzero(sequence >= 0)
    is_backward = is_backward[known]
    order = np.lexsort((is_backward, start_ns[known], sequence[known]))
    known, is_backward = known[order], is_backward[order]
    position = np.arange(known.size)
    last_forward = (
        np.maximum.accumulate(np.where(is_backward, -1, position)) if known.size else position
    )
    joined = np.flatnonzero(is_backward & (last_forward >= 0))
    forward = known[last_forward[joined]]
    backward = known[joined]
    same = sequence[forward] == sequence[backward]
    return row[backward[same]], row[forward[same]]
