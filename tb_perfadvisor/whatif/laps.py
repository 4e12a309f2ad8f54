"""One lap through the joins of a graph: from the moments of its tails to those of its ends.

Joins are added up one after the other. Of a large profile there are hundreds of thousands; those
are cut into pieces where few earlier moments matter to what follows. Whatever enters a piece, what
leaves it is the latest of what entered, each with a distance of its own. These distances are
worked out for many pieces side by side, and a lap is then one step for each piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.trace.tables import Int64
from tb_perfadvisor.whatif.program import NEVER

if TYPE_CHECKING:
    from tb_perfadvisor.whatif.joins import Index, Joins

Lap = Callable[[Sequence[int]], list[int]]
"""From the moments of all tails to those of the wanted nodes."""

# Below, one after the other takes a few milliseconds.
_WORTH_JOINS = 20_000
# A number as Python has it takes four times the room of one in a column.
_LISTED = 1 << 14
# Long pieces are few to go through in a lap, short ones are many to work out side by side.
_PIECE = 256
# Pieces that are worked out side by side: so many that what numpy takes for a call counts little.
_LANES = 1024
# What is worked out grows with it; recorded and drawn programs have 3 to 9.
_MOST_ENTERING = 16
# Earlier than what never came, and so that twice of it fits.
_UNREACHED = 2 * NEVER


class Cuts(Struct, frozen=True):
    """Where the joins are cut, and what each piece is made of.

    In a piece moments are numbered anew: first those that enter it, then its joins.
    """

    begin: Index
    """The first join of each piece; shape (pieces,)."""
    length: Index
    """Its joins."""
    entering: Index
    """Of each piece, and of what follows the last, the moments that enter it; shape (pieces + 1,
    most), filled with the first tail."""
    source: Index
    """Of each join, in its piece; shape (joins,)."""
    other_source: Index
    leaving: Index
    """Of each piece what enters the next one, in this one; shape (pieces, most)."""
    end: Index
    """What the wanted nodes follow, among what leaves the last piece; shape (wanted,)."""


def find_cuts(source: Index, other_source: Index, end: Index, before: int) -> Cuts | None:
    """Cut the joins; None where they are too few, or hang together too much.

    Args:
        source: Of each join, shape (joins,).
        other_source: The other one.
        end: What the wanted nodes follow.
        before: How many moments there are before the first join.
    """
    joins = len(source)
    if joins < _WORTH_JOINS:
        return None
    # Until which join a moment matters; a wanted one to the end.
    until = np.full(before + joins, -1, dtype=np.int32)
    for sources in (source, other_source):
        latest = np.full(before + joins, -1, dtype=np.int32)
        latest[sources] = np.arange(joins, dtype=np.int32)  # of several the last one stands
        np.maximum(until, latest, out=until)
    until[end] = joins
    known = np.maximum(np.arange(before + joins) - before + 1, 0).astype(np.int32)
    bounds = _bounds(known, until, joins)
    first, behind = np.searchsorted(bounds, known), np.searchsorted(bounds, until, "right")
    entered = np.maximum(behind - first, 0)
    moment = np.repeat(np.arange(before + joins), entered)
    which = np.arange(len(moment)) - np.repeat(np.cumsum(entered) - entered, entered)
    piece = np.repeat(first, entered) + which
    order = np.argsort(piece, kind="stable")
    piece, moment = piece[order], moment[order]
    counts = np.bincount(piece, minlength=len(bounds))
    most = int(counts.max())
    if most > _MOST_ENTERING:
        return None
    place = np.arange(len(moment)) - np.repeat(np.cumsum(counts) - counts, counts)
    entering = np.zeros((len(bounds), most), dtype=np.int32)
    entering[piece, place] = moment
    # Pairs of a piece and what enters it, as one number.
    key = piece * (before + joins) + moment

    def inside(pieces: NDArray[np.int64], moments: Index) -> Index:
        """Moments as a piece numbers them."""
        found = most + moments - before - bounds[pieces]
        outside = np.flatnonzero(found < most)
        slot = np.searchsorted(key, pieces[outside] * (before + joins) + moments[outside])
        found[outside] = place[np.minimum(slot, len(place) - 1)]
        return found.astype(np.int32)

    length = np.diff(bounds)
    pieces = np.arange(len(length))
    own = np.repeat(pieces, length)
    return Cuts(
        begin=bounds[:-1].astype(np.int32),
        length=length.astype(np.int32),
        entering=entering,
        source=inside(own, source),
        other_source=inside(own, other_source),
        leaving=inside(np.repeat(pieces, most), entering[1:].ravel()).reshape(-1, most),
        end=inside(np.full(end.shape, len(pieces)), end),
    )


def _bounds(known: Index, until: Index, joins: int) -> Int64:
    """Where to cut: about every so many joins, where the fewest moments matter afterwards."""
    matters = until >= known
    begun, ended = (
        np.bincount(column[matters], minlength=joins + 2) for column in (known, until + 1)
    )
    mattering = np.cumsum(begun - ended)
    around = np.arange(_PIECE, joins - _PIECE // 2, _PIECE) - _PIECE // 4
    choice = mattering[around[:, None] + np.arange(_PIECE // 2)]
    return np.concatenate(([0], around + choice.argmin(axis=1), [joins]))


def lap_of(joins: Joins) -> Lap:
    """How one lap goes."""
    ends = list(zip(joins.end_source.tolist(), joins.end_lag_ns.tolist(), strict=True))
    if joins.cuts is None:
        return lambda tails: _one_by_one(joins, ends, tails)
    cuts, distance_ns = joins.cuts, _distances_ns(joins, joins.cuts)

    def lap(tails: Sequence[int]) -> list[int]:
        at = np.array([*tails, NEVER])[cuts.entering[0]]
        for piece_ns in distance_ns:
            at = (piece_ns + at).max(axis=1)
        reached = at[cuts.end].tolist()
        return [moment + lag_ns for moment, (_, lag_ns) in zip(reached, ends, strict=True)]

    return lap


def _one_by_one(joins: Joins, ends: Sequence[tuple[int, int]], tails: Sequence[int]) -> list[int]:
    at = [*tails, NEVER]
    reach = at.append
    for columns in _listed(joins):
        for source, lag_ns, other, other_lag_ns in zip(*columns, strict=True):
            moment, other_moment = at[source] + lag_ns, at[other] + other_lag_ns
            reach(moment if moment > other_moment else other_moment)
    return [at[source] + lag_ns for source, lag_ns in ends]


def _listed(joins: Joins) -> Iterator[tuple[list[int], ...]]:
    """Source, lag, other source, other lag: of some joins, then of the next ones."""
    columns = (joins.source, joins.lag_ns, joins.other_source, joins.other_lag_ns)
    for begin in range(0, len(joins.source), _LISTED):
        yield tuple(column[begin : begin + _LISTED].tolist() for column in columns)


def _distances_ns(joins: Joins, cuts: Cuts) -> Int64:
    """How long after each moment that enters a piece each one comes that leaves it, at least.

    Returns:
        Shape (pieces, leaving, entering); `_UNREACHED` where the one does not follow the other.
    """
    pieces, most = cuts.leaving.shape
    distance_ns = np.empty((pieces, most, most), dtype=np.int64)
    for begin in range(0, pieces, _LANES):
        some = slice(begin, min(begin + _LANES, pieces))
        distance_ns[some] = _side_by_side(joins, cuts, some)
    return distance_ns


def _side_by_side(joins: Joins, cuts: Cuts, some: slice) -> Int64:
    most, length = cuts.leaving.shape[1], cuts.length[some]
    lanes, longest = len(length), int(length.max())
    lane = np.arange(lanes)
    # Of each lane a row for every moment, one after the other; what is beyond its end is no matter.
    rows = most + longest
    first = cuts.begin[some]
    place = np.minimum(first + np.arange(longest)[:, None], len(cuts.source) - 1)
    columns = [
        (
            np.minimum(source[place], rows - 1) + lane * rows,
            lag_ns[place][:, :, None],
        )
        for source, lag_ns in (
            (cuts.source, joins.lag_ns),
            (cuts.other_source, joins.other_lag_ns),
        )
    ]
    after_ns = np.full((lanes, rows, most), _UNREACHED, dtype=np.int64)
    after_ns[:, np.arange(most), np.arange(most)] = 0
    by_row = after_ns.reshape(-1, most)
    (source, lag_ns), (other, other_lag_ns) = columns
    for join in range(longest):
        moment = by_row[source[join]]
        moment += lag_ns[join]
        other_moment = by_row[other[join]]
        other_moment += other_lag_ns[join]
        np.maximum(moment, other_moment, out=after_ns[:, most + join])
    return after_ns[lane[:, None], cuts.leaving[some]]
