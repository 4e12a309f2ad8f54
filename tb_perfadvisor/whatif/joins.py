"""Reduces a graph to its joins: the moments at which one line may wait for another.

Between joins everything follows at fixed distances, so a whole stretch is one sum. And of work
that was launched in one go on one stream only the last needs a look: each piece follows the one
before it or its launch, and all launches lie at fixed distances from one moment. A run of such
`max` and `+` is one `max` of two sums. What is left to do one by one is some hundred joins in
place of tens of thousands of moments.

Which these are follows from who waits for whom, whatever the distances. So a graph is reduced once
(`plan_joins`), and each re-timing adds up the distances of its own (`JoinPlan.joins`).
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.trace.tables import Int32, Int64
from tb_perfadvisor.whatif.laps import Cuts, find_cuts

# There are several millions of nodes in a large profile: half the width is half the memory.
Index = NDArray[np.int32]


class Joins(Struct, frozen=True):
    """What remains. A join comes at the later of two moments, each some lag after a source.

    Moments are numbered: the tails, one that never comes, and the joins in the order of the
    record, which all their sources precede. A join of more than two arcs stands several times in a
    row, from the second time on after itself. Columns of shape (joins,).
    """

    source: Index
    lag_ns: Int64
    other_source: Index
    other_lag_ns: Int64
    end_source: Index
    """What each wanted node follows at a fixed distance; shape (wanted,)."""
    end_lag_ns: Int64
    """That distance."""
    cuts: Cuts | None
    """Where there are many joins, how they are cut."""


class JoinPlan(Struct, frozen=True, dict=True):
    """Which joins remain, and what adds up to their lags. Arcs and nodes by number."""

    single: Index
    """Arcs into nodes that have no other."""
    single_target: Index
    order: Index
    """The nodes, chain by chain."""
    follows: NDArray[np.bool_]
    """Whether each of them follows the one before at a fixed distance."""
    head: Index
    """Where in that order the stretch of each begins."""
    root: Index
    """For each node what it follows at a fixed distance: a join, a tail, or itself."""
    hops: tuple[tuple[Index, Index], ...]
    """Nodes that follow others of other chains, and those: one step nearer to the root each."""
    arc: Index
    """Arcs into joins."""
    arc_source: Index
    link: Index
    """Of joins of two arcs the one along the chain, as its place in `arc`."""
    cause: Index
    """And the other one."""
    start: Index
    """Where runs of those begin."""
    end: Index
    """And the last of each."""
    many: Index
    """Of joins of more arcs, two at a time, the first one's place in `arc`; -1 for the join
    itself."""
    many_other: Index
    by_node: Index
    """Puts runs and joins of more arcs into the order of the record."""
    source: Index
    """As of `Joins`."""
    other_source: Index
    wanted: Index
    end_source: Index
    first: int
    """The number of the first join."""

    @cached_property
    def cuts(self) -> Cuts | None:
        """Where the joins are cut."""
        return find_cuts(self.source, self.other_source, self.end_source, self.first)

    def joins(self, lag_ns: Int64) -> Joins:
        """The joins.

        Args:
            lag_ns: Of each arc, from its source to its target.
        """
        offset_ns = self._offset_ns(lag_ns)
        from_ns = lag_ns[self.arc] + offset_ns[self.arc_source]
        link_ns, cause_ns = from_ns[self.link], from_ns[self.cause]
        reached = np.cumsum(link_ns)
        latest = reached[:0]
        if self.start.size:
            latest = np.maximum.reduceat(cause_ns - reached, self.start)
        last, first = reached[self.end], reached[self.start]
        one_ns = (last - first + link_ns[self.start], _at(from_ns, self.many))
        other_ns = (latest + last, from_ns[self.many_other])
        return Joins(
            self.source,
            np.concatenate(one_ns)[self.by_node],
            self.other_source,
            np.concatenate(other_ns)[self.by_node],
            self.end_source,
            offset_ns[self.wanted],
            self.cuts,
        )

    def _offset_ns(self, lag_ns: Int64) -> Int64:
        offset_ns = np.zeros(len(self.root), dtype=np.int64)
        offset_ns[self.single_target] = lag_ns[self.single]
        # Along each chain first, by sums; what follows one of another chain is then few hops away.
        in_order = offset_ns[self.order]
        reached = np.cumsum(np.where(self.follows, in_order, 0))
        offset_ns[self.order] = reached - reached[self.head] + in_order[self.head]
        for nodes, others in self.hops:
            offset_ns[nodes] += offset_ns[others]
        return offset_ns


def _at(values: Int64, places: Index) -> Int64:
    """The values at some places; 0 at -1."""
    found = values[np.maximum(places, 0)] if values.size else np.zeros(places.size, dtype=np.int64)
    return np.where(places >= 0, found, 0)


def last_of_chains(chain: Int32, chains: int) -> tuple[Int64, Index]:
    """The chains that there are, and the last node of each.

    Args:
        chain: Of each node, shape (nodes,).
        chains: How many there may be.
    """
    last_of = np.full(chains, -1, dtype=np.int32)
    last_of[chain] = np.arange(len(chain), dtype=np.int32)
    present = np.flatnonzero(last_of >= 0)
    return present, last_of[present]


def plan_joins(source: Int32, target: Int32, chain: Int32, tails: int, wanted: Index) -> JoinPlan:
    """Reduce a graph.

    Args:
        source: Of each arc, shape (arcs,); those beyond the nodes are tails.
        target: Sorted.
        chain: Of each node, shape (nodes,).
        tails: How many there are.
        wanted: Nodes whose moments must be known: they may follow a join, but are not skipped.
    """
    count = len(chain)
    arcs_into = np.bincount(target, minlength=count).astype(np.int32)
    order = np.argsort(chain.astype(np.int16), kind="stable").astype(np.int32)
    single = np.flatnonzero(arcs_into[target] == 1).astype(np.int32)
    root = np.arange(count + tails, dtype=np.int32)
    root[target[single]] = source[single]
    follows = root[order] == _before(order)
    head = np.maximum.accumulate(np.where(follows, 0, np.arange(count, dtype=np.int32)))
    root[order] = root[order[head]]
    hops = []
    while (further := np.flatnonzero(root != root[root]).astype(np.int32)).size:
        others = root[further]
        hops.append((further, others))
        root[further] = root[others]
    arc = np.flatnonzero(arcs_into[target] > 1).astype(np.int32)
    into = target[arc]
    origin = root[source[arc]]
    many = _of_many(into, origin, arcs_into)
    is_needed = np.zeros(count + tails, dtype=np.bool_)
    is_needed[many.source] = is_needed[many.other_source] = is_needed[root[wanted]] = True
    of_two = np.flatnonzero((arcs_into[into] == 2) & (np.diff(into, prepend=-1) != 0))
    runs = _runs(
        into[of_two],
        of_two.astype(np.int32),
        origin,
        _previous_join(chain, order, arcs_into),
        order,
        is_needed,
    )
    node = np.concatenate((runs.node[runs.end], many.node))
    by_node = np.argsort(node, kind="stable").astype(np.int32)
    sources = np.concatenate((origin[runs.link[runs.start]], many.source))
    others = np.concatenate((origin[runs.cause[runs.start]], many.other_source))
    node, sources, others = node[by_node], sources[by_node], others[by_node]
    joins = np.arange(tails + 1, tails + 1 + len(node), dtype=np.int32)
    number = np.full(count + tails, tails, dtype=np.int32)
    number[count:] = np.arange(tails)
    number[node] = joins  # of a join that stands several times the last one
    return JoinPlan(
        single=single,
        single_target=target[single],
        order=order,
        follows=follows,
        head=head,
        root=root,
        hops=tuple(hops),
        arc=arc,
        arc_source=source[arc],
        link=runs.link,
        cause=runs.cause,
        start=runs.start,
        end=runs.end,
        many=many.at,
        many_other=many.other_at,
        by_node=by_node,
        source=np.where(sources == node, joins - 1, number[sources]).astype(np.int32),
        other_source=number[others],
        wanted=wanted,
        end_source=number[root[wanted]],
        first=tails + 1,
    )


def _previous_join(chain: Int32, order: Index, arcs_into: Index) -> Index:
    """For each node the join before it on its chain, if it is a join itself; -1 for none."""
    joins = order[arcs_into[order] > 1]
    previous = np.full(len(chain), -1, dtype=np.int32)
    same = chain[joins[1:]] == chain[joins[:-1]]
    previous[joins[1:][same]] = joins[:-1][same]
    return previous


def _before(values: Index) -> Index:
    """Of each the one before it; -1 for the first."""
    before = np.empty_like(values)
    before[:1], before[1:] = -1, values[:-1]
    return before


class _OfMany(Struct, frozen=True):
    """Joins of more than two arcs, two at a time: the first two, then each after itself."""

    node: Index
    source: Index
    at: Index
    other_source: Index
    other_at: Index


def _of_many(node: Index, source: Index, arcs_into: Index) -> _OfMany:
    """Of arcs into joins those into joins of many; they are told by their place."""
    places = np.flatnonzero(arcs_into[node] > 2).astype(np.int32)
    node, source = node[places], source[places]
    is_first = np.diff(node, prepend=-1) != 0
    is_second = np.append(False, is_first[:-1])
    then = np.flatnonzero(~is_first)
    before = then - 1
    return _OfMany(
        node[then],
        np.where(is_second[then], source[before], node[then]),
        np.where(is_second[then], places[before], np.int32(-1)),
        source[then],
        places[then],
    )


class _Runs(Struct, frozen=True):
    """Joins of two arcs, chain by chain; those of a run follow each other and else one moment."""

    node: Index
    link: Index
    cause: Index
    start: Index
    end: Index


def _runs(
    node: Index,
    place: Index,
    origin: Index,
    previous: Index,
    order: Index,
    is_needed: NDArray[np.bool_],
) -> _Runs:
    """Find the runs.

    Args:
        node: The joins of two arcs.
        place: Of the first arc of each; the second follows.
        origin: The root of each arc's source.
        previous: For each node the join before it on its chain.
        order: Nodes chain by chain.
        is_needed: Which moments others need; what these joins need is added.
    """
    slot = np.full(len(order), -1, dtype=np.int32)
    slot[node] = np.arange(len(node), dtype=np.int32)
    in_order = slot[order]
    in_order = in_order[in_order >= 0]
    node, place = node[in_order], place[in_order]
    before = previous[node]
    is_swapped = (origin[place + 1] == before) & (origin[place] != before)
    link, cause = place + is_swapped, place + ~is_swapped
    from_link, from_cause = origin[link], origin[cause]
    is_needed[from_cause] = True
    is_needed[from_link[from_link != before]] = True
    goes_on = (from_link == before) & (before == _before(node))
    goes_on &= from_cause == _before(from_cause)
    goes_on &= ~is_needed[_before(node)]
    start = np.flatnonzero(~goes_on).astype(np.int32)
    end = np.append(start[1:], np.int32(len(node))) - np.int32(1) if start.size else start
    return _Runs(node, link, cause, start, end)
