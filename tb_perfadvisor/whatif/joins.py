"""Reduces a graph to its joins: the moments at which one line may wait for another.

Between joins everything follows at fixed distances, so a whole stretch is one sum. And of work
that was launched in one go on one stream only the last needs a look: each piece follows the one
before it or its launch, and all launches lie at fixed distances from one moment. A run of such
`max` and `+` is one `max` of two sums. What is left to do one by one is some hundred joins in
place of tens of thousands of moments.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.trace.tables import Int32, Int64

# There are several millions of nodes in a large profile: half the width is half the memory.
Index = NDArray[np.int32]


class Joins(Struct, frozen=True):
    """What remains. A join comes at the later of two moments, each some lag after a source.

    Columns of shape (joins,), in the order of the record, which all sources precede. A join of
    more than two arcs stands several times in a row, from the second time on after itself.
    """

    node: Index
    source: Index
    lag_ns: Int64
    other_source: Index
    other_lag_ns: Int64
    root: Index
    """For each node what it follows at a fixed distance: a join, a tail, or itself."""
    offset_ns: Int64
    """That distance."""

    def columns(self) -> tuple[list[int], ...]:
        """Node, source, lag, other source, other lag."""
        return (
            self.node.tolist(),
            self.source.tolist(),
            self.lag_ns.tolist(),
            self.other_source.tolist(),
            self.other_lag_ns.tolist(),
        )


def find_joins(
    source: Int32, target: Int32, lag_ns: Int64, chain: Int32, tails: int, wanted: Index
) -> Joins:
    """Reduce a graph.

    Args:
        source: Of each arc, shape (arcs,); those beyond the nodes are tails.
        target: Sorted.
        lag_ns: From the source to the target.
        chain: Of each node, shape (nodes,).
        tails: How many there are.
        wanted: Nodes whose moments must be known: they may follow a join, but are not skipped.
    """
    count = len(chain)
    arcs_into = np.bincount(target, minlength=count).astype(np.int32)
    order = np.argsort(chain.astype(np.int16), kind="stable").astype(np.int32)
    root, offset_ns = _roots(source, target, lag_ns, chain, order, arcs_into, tails)
    into_joins = np.flatnonzero(arcs_into[target] > 1).astype(np.int32)
    node = target[into_joins]
    from_ns = lag_ns[into_joins] + offset_ns[source[into_joins]]
    origin = root[source[into_joins]]
    many = _of_many(node, origin, from_ns, arcs_into)
    is_needed = np.zeros(count + tails, dtype=np.bool_)
    is_needed[many[1]] = is_needed[many[3]] = is_needed[root[wanted]] = True
    of_two = np.flatnonzero((arcs_into[node] == 2) & (np.diff(node, prepend=-1) != 0))
    one, other = ((origin[own], from_ns[own]) for own in (of_two, of_two + 1))
    node = node[of_two]
    del into_joins, origin, from_ns, of_two
    runs = _runs(node, one, other, _previous_join(chain, order, arcs_into), order, is_needed)
    pairs: Iterable[tuple[NDArray[Any], NDArray[Any]]] = zip(runs, many, strict=True)
    joined = [np.concatenate(pair) for pair in pairs]
    by_node = np.argsort(joined[0], kind="stable")
    node, first, first_ns, second, second_ns = (column[by_node] for column in joined)
    return Joins(node, first, first_ns, second, second_ns, root, offset_ns)


def _roots(
    source: Int32,
    target: Int32,
    lag_ns: Int64,
    chain: Int32,
    order: Index,
    arcs_into: Index,
    tails: int,
) -> tuple[Index, Int64]:
    """What each node follows at a fixed distance, and the distance; itself for all others."""
    count = len(chain)
    root = np.arange(count + tails, dtype=np.int32)
    offset_ns = np.zeros(count + tails, dtype=np.int64)
    single = np.flatnonzero(arcs_into[target] == 1)
    root[target[single]] = source[single]
    offset_ns[target[single]] = lag_ns[single]
    # Along each chain first, by sums; what follows one of another chain is then few hops away.
    follows = root[order] == _before(order)
    head = np.maximum.accumulate(np.where(follows, 0, np.arange(count, dtype=np.int32)))
    reached = np.cumsum(np.where(follows, offset_ns[order], 0))
    offset_ns[order] = reached - reached[head] + offset_ns[order[head]]
    root[order] = root[order[head]]
    while (further := np.flatnonzero(root != root[root])).size:
        offset_ns[further] += offset_ns[root[further]]
        root[further] = root[root[further]]
    return root, offset_ns


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


def _of_many(
    node: Index, source: Index, lag_ns: Int64, arcs_into: Index
) -> tuple[Index, Index, Int64, Index, Int64]:
    """Joins of more than two arcs, two at a time: the first two, then each after itself."""
    arcs = np.flatnonzero(arcs_into[node] > 2)
    node, source, lag_ns = node[arcs], source[arcs], lag_ns[arcs]
    is_first = np.diff(node, prepend=-1) != 0
    is_second = np.append(False, is_first[:-1])
    then = np.flatnonzero(~is_first)
    before = then - 1
    return (
        node[then],
        np.where(is_second[then], source[before], node[then]),
        np.where(is_second[then], lag_ns[before], 0),
        source[then],
        lag_ns[then],
    )


def _runs(
    node: Index,
    one: tuple[Index, Int64],
    other: tuple[Index, Int64],
    previous: Index,
    order: Index,
    is_needed: NDArray[np.bool_],
) -> tuple[Index, Index, Int64, Index, Int64]:
    """Joins of two arcs, those in one that follow each other and otherwise one moment.

    Args:
        node: The joins.
        one: Source and lag of an arc of each.
        other: Of the other one.
        previous: For each node the join before it on its chain.
        order: Nodes chain by chain.
        is_needed: Which moments others need; what these joins need is added.
    """
    slot = np.full(len(order), -1, dtype=np.int32)
    slot[node] = np.arange(len(node), dtype=np.int32)
    in_order = slot[order]
    in_order = in_order[in_order >= 0]
    node = node[in_order]
    before = previous[node]
    first, first_lag_ns = (column[in_order] for column in one)
    second, second_lag_ns = (column[in_order] for column in other)
    is_swapped = (second == before) & (first != before)
    link = np.where(is_swapped, second, first)
    link_ns = np.where(is_swapped, second_lag_ns, first_lag_ns)
    cause = np.where(is_swapped, first, second)
    cause_ns = np.where(is_swapped, first_lag_ns, second_lag_ns)
    is_needed[cause] = True
    is_needed[link[link != before]] = True
    goes_on = (link == before) & (before == _before(node))
    goes_on &= cause == _before(cause)
    goes_on &= ~is_needed[_before(node)]
    start = np.flatnonzero(~goes_on)
    if not start.size:
        return node, link, link_ns, cause, cause_ns
    end = np.append(start[1:], len(node)) - 1
    reached = np.cumsum(link_ns)
    latest = np.maximum.reduceat(cause_ns - reached, start)
    return (
        node[end],
        link[start],
        reached[end] - reached[start] + link_ns[start],
        cause[start],
        latest + reached[end],
    )
