"""Replays a graph with a fix.

What a change does to a program: small values that rules return with their savings.

Each says what would disappear, get shorter or no longer be waited for. The replay computes what
that is worth. Several fixes can be applied together.

The recorded steps stand for a program that runs on. So the graph is replayed in rounds, each from
where the round before left the threads and streams, until every one of them takes as long as in the
round before. The slowest one then decides how long the steps take. That way filling the queue once
is not charged to a step, but a device that cannot keep up is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.intervals import Intervals, complement, intersect, join, overlap_ns, union
from tb_perfadvisor.trace.tables import Int32, Int64
from tb_perfadvisor.whatif.graph import EdgeKind, Graph, NodeKind
from tb_perfadvisor.whatif.program import NEVER


class Remove(Struct, frozen=True, tag=True):
    """The thread that runs the steps no longer does what it did in these intervals.

    Time in which the thread waits for the device is not saved: the device still needs it.
    """

    intervals: Intervals
    is_launching: bool = False
    """Whether launching is removed. Then what recording cost the host is not a gain."""


class Async(Struct, frozen=True, tag=True):
    """Calls no longer wait for the device."""

    rows: Int32
    """Synchronizations, or launches of blocking copies."""


class Shorten(Struct, frozen=True, tag=True):
    """Device events take less time."""

    rows: Int32
    duration_ns: Int64
    """The new duration of each; shape (rows,)."""


class Overlap(Struct, frozen=True, tag=True):
    """Copies overlap all other device work: neither waits for the other.

    They keep their launches and their order. On whatever streams, they share one link.
    """

    rows: Int32


Fix = Remove | Async | Shorten | Overlap


def shrink(start_ns: Int64, end_ns: Int64, to_ns: int) -> Remove:
    """Limit each stretch of host work to `to_ns`."""
    return Remove(union(start_ns + to_ns, end_ns))


_EVER_NS = 2**62

MAX_ROUNDS = 6
"""Two or three are enough, unless one of two almost equally fast chains slowly catches up."""


class _Edges(Struct):
    """A graph's edges while fixes are applied to them."""

    source: Int32
    delay_ns: Int64
    is_kept: NDArray[np.bool_]
    duration_ns: Int64
    """Per node."""
    chain: Int32
    """Per node. Work that overlaps everything moves to a chain beside its stream's."""


class RemovedTime(Struct, frozen=True):
    """Time that all replays of a graph do without."""

    lost_ns: Int64
    """The part of each of the graph's spans; shape (spans,)."""
    kept: Intervals
    """All other time."""


def remove_time(graph: Graph, intervals: Intervals) -> RemovedTime:
    """Compute what each span of a graph loses without some time."""
    lost_ns = overlap_ns(intervals, graph.spans.from_ns, graph.spans.to_ns)
    return RemovedTime(lost_ns, complement(intervals, -_EVER_NS, _EVER_NS))


def replay(graph: Graph, fixes: Sequence[Fix] = (), removed: RemovedTime | None = None) -> int:
    """Compute how long a window takes with some fixes applied, in nanoseconds.

    That is from one end of the window to the next; for a single run, from its start to its end.
    """
    edges = _Edges(
        graph.source,
        graph.delay_ns.copy(),
        np.ones(len(graph.target), dtype=np.bool_),
        graph.duration_ns.copy(),
        graph.chain,
    )
    _apply(graph, edges, fixes, removed)
    # Copies that run beside all other work have a chain of their own.
    tail_ns: list[int] = [*graph.tail_ns.tolist(), *[NEVER] * len(graph.tail_ns)]
    chains, last_nodes = _last_nodes(edges.chain, len(tail_ns))
    longest_paths = _longest_paths(graph, edges, last_nodes)
    is_critical = (chains == 0) | (chains >= graph.lines)
    critical = np.flatnonzero(is_critical).tolist()
    leading = np.flatnonzero(is_critical | is_in(chains, _leading(graph, edges))).tolist()
    ends = [tail_ns[chain] for chain in chains.tolist()]
    advances: list[int] = []
    for _ in range(1 if graph.is_one_run else MAX_ROUNDS):
        starts, ends = ends, longest_paths(tail_ns)
        previous, advances = advances, [ends[place] - starts[place] for place in critical]
        if advances == previous or _advance_alike([ends[at] - starts[at] for at in leading]):
            break
        # The next round begins where this one left each chain.
        for chain, end_ns in zip(chains.tolist(), ends, strict=True):
            tail_ns[chain] = end_ns
    if graph.is_one_run:
        last_ns: int = max(ends[place] for place in critical)
        return last_ns - int(graph.tail_ns[0])
    return max(advances)


def _advance_alike(advances: Sequence[int]) -> bool:
    """Whether all chains come later by the same time. Then so they do in the next round."""
    return len(set(advances)) == 1


def _leading(graph: Graph, edges: _Edges) -> Int32:
    """The chains from which edges lead to other chains, with repetitions."""
    chain = np.append(edges.chain, np.arange(2 * len(graph.tail_ns), dtype=np.int32))
    source, target = chain[edges.source], chain[graph.target]
    leading: Int32 = source[source != target]
    return leading


def _last_nodes(chain: Int32, count: int) -> tuple[Int64, Int64]:
    """The chains that have nodes, and the last node of each.

    `chain` has the chain of each node.
    """
    last = np.full(count, -1, dtype=np.int64)
    last[chain] = np.arange(len(chain))
    chains = np.flatnonzero(last >= 0)
    return chains, last[chains]


def _longest_paths(
    graph: Graph, edges: _Edges, nodes: Int64
) -> Callable[[Sequence[int]], list[int]]:
    """A function from the tails of the chains to the moments of some nodes.

    Calls between two waits follow the first one by fixed times, so a sum replaces their edges.
    Another one replaces the edges along a stream between work that something else follows.
    """
    weight_ns = edges.delay_ns + edges.duration_ns[graph.target]
    elapsed_ns = np.zeros(len(graph.followed), dtype=np.int64)
    elapsed_ns[graph.target[graph.host_edges]] = np.cumsum(weight_ns[graph.host_edges])
    elapsed_ns -= elapsed_ns[graph.followed]
    is_awaited = np.bincount(edges.source[edges.is_kept], minlength=len(graph.followed)) != 1
    is_awaited[nodes] = True
    along = graph.stream_edges
    work = graph.target[along]
    is_last = np.append(is_awaited[work[:-1]] | (edges.source[along[1:]] != work[:-1]), True)
    last = np.flatnonzero(is_last[: len(along)])
    place = np.repeat(last, np.diff(last, prepend=-1))
    reached_ns = np.cumsum(weight_ns[along])
    until = np.arange(len(graph), dtype=np.int64)
    until[work] = work[place]
    until_ns = np.zeros(len(graph), dtype=np.int64)
    until_ns[work] = reached_ns[place] - reached_ns
    kept = edges.is_kept & (graph.followed[graph.target] == graph.target)
    kept[along[1:][~is_last[: len(along) - 1]]] = False
    source, target = edges.source[kept], graph.target[kept]
    weight_ns = weight_ns[kept] + elapsed_ns[source] + until_ns[target]
    # Of the edges between two nodes, the longest counts. In order of their targets.
    between = until[target] * len(graph.followed) + graph.followed[source]
    order = np.argsort(between, kind="stable")
    between = between[order]
    first = np.flatnonzero(np.diff(between, prepend=-1))
    target, source = np.divmod(between[first], len(graph.followed))
    weight_ns = np.maximum.reduceat(weight_ns[order], first) if len(first) else weight_ns
    # Python's lists are several times as fast as numpy's columns, read one number at a time.
    columns = source.tolist(), target.tolist(), weight_ns.tolist()
    results = list(zip(graph.followed[nodes].tolist(), elapsed_ns[nodes].tolist(), strict=True))

    def moments(tail_ns: Sequence[int]) -> list[int]:
        # Edges are sorted by target, and each source comes before its target: one pass will do.
        at_ns = [NEVER] * len(graph) + list(tail_ns)
        for source, target, edge_ns in zip(*columns, strict=True):
            moment = at_ns[source] + edge_ns
            if moment > at_ns[target]:
                at_ns[target] = moment
        return [at_ns[node] + node_ns for node, node_ns in results]

    return moments


def _apply(graph: Graph, edges: _Edges, fixes: Sequence[Fix], removed: RemovedTime | None) -> None:
    for fix in fixes:
        if isinstance(fix, Async):
            _release(graph, edges, fix.rows)
    shorter = [fix for fix in fixes if isinstance(fix, Shorten)]
    if shorter:
        _shorten(graph, edges, shorter)
    intervals = [fix.intervals for fix in fixes if isinstance(fix, Remove)]
    if intervals or removed is not None:
        _remove(graph, edges, join(*intervals), removed)
    overlapped = [fix.rows for fix in fixes if isinstance(fix, Overlap)]
    if overlapped:
        _overlap(graph, edges, distinct(np.concatenate(overlapped)))


def _remove(graph: Graph, edges: _Edges, intervals: Intervals, removed: RemovedTime | None) -> None:
    spans = graph.spans
    if removed is None:
        lost_ns = overlap_ns(intervals, spans.from_ns, spans.to_ns)
    else:
        more = intersect(intervals, removed.kept)
        lost_ns = removed.lost_ns + overlap_ns(more, spans.from_ns, spans.to_ns)
    kind = graph.edge_kind[spans.edge]
    on_step_line = (kind == EdgeKind.HOST) & (graph.chain[graph.target[spans.edge]] == 0)
    edges.delay_ns[spans.edge[on_step_line]] -= lost_ns[on_step_line]
    # Without the fetch nothing waits for the batch.
    all_lost = lost_ns == spans.to_ns - spans.from_ns
    edges.is_kept[spans.edge[(kind == EdgeKind.WAIT) & all_lost]] = False


def _shorten(graph: Graph, edges: _Edges, fixes: Sequence[Shorten]) -> None:
    work = np.flatnonzero(graph.kind == NodeKind.WORK)
    rows = [fix.rows for fix in fixes]
    last = max(int(column.max(initial=-1)) for column in (*rows, graph.row))
    node_of = np.full(last + 1, -1, dtype=np.int64)
    node_of[graph.row[work]] = work
    for fix in fixes:
        nodes = node_of[fix.rows]
        inside = nodes >= 0
        np.minimum.at(edges.duration_ns, nodes[inside], fix.duration_ns[inside])


def _release(graph: Graph, edges: _Edges, rows: Int32) -> None:
    """Calls return without waiting. Synchronizations cost nothing any more."""
    is_released = (graph.kind == NodeKind.RETURN) & is_in(graph.row, rows)
    into = is_released[graph.target]
    edges.is_kept &= ~(into & (graph.edge_kind == EdgeKind.WAIT))
    # A copy that does not wait is still launched.
    launches = graph.row[graph.kind == NodeKind.CALL]
    is_sync = into & (graph.edge_kind == EdgeKind.HOST) & ~is_in(graph.row[graph.target], launches)
    freed = is_sync[graph.spans.edge]
    edges.delay_ns[graph.spans.edge[freed]] -= graph.spans.cost_ns[freed]


def _overlap(graph: Graph, edges: _Edges, rows: Int32) -> None:
    """Work that neither waits for other work nor is waited for by other work.

    A call that waited for it now waits for the work before it on its stream. Copies that their own
    call waits for stay as they are: the program needs their result at once.
    """
    is_overlapped = np.zeros(len(graph) + len(graph.tail_ns), dtype=np.bool_)
    awaited = edges.source[graph.edge_kind == EdgeKind.WAIT]
    awaiting = graph.target[graph.edge_kind == EdgeKind.WAIT]
    launches = graph.row[graph.kind == NodeKind.CALL]
    own_result = awaited[is_in(graph.row[awaiting], launches)]
    is_overlapped[: len(graph)] = (graph.kind == NodeKind.WORK) & is_in(graph.row, rows)
    is_overlapped[own_result] = False
    from_overlapped, into_overlapped = is_overlapped[edges.source], is_overlapped[graph.target]
    edges.is_kept &= ~((graph.edge_kind == EdgeKind.CROSS) & (from_overlapped | into_overlapped))
    chains = len(graph.tail_ns)
    before: dict[int, int] = {}
    if not is_overlapped.any():
        return
    link = chains + int(graph.chain[np.argmax(is_overlapped)])
    last_overlapped = len(graph) + link
    follows = (graph.edge_kind == EdgeKind.STREAM) | (graph.edge_kind == EdgeKind.WAIT)
    followers = np.flatnonzero(follows & (from_overlapped | into_overlapped))
    overlapped = is_overlapped.tolist()
    sources = edges.source[followers].tolist()
    for slot, node in enumerate(graph.target[followers].tolist()):
        source = sources[slot]
        source = before.get(source, source)
        if overlapped[node]:
            # Its followers follow the work before it. It follows the last overlapped work.
            before[node] = source
            source = last_overlapped
            last_overlapped = node
        sources[slot] = source
    edges.source = edges.source.copy()
    edges.source[followers] = sources
    along = followers[graph.edge_kind[followers] == EdgeKind.STREAM]
    edges.delay_ns[along] = np.minimum(edges.delay_ns[along], graph.gap_ns)
    edges.chain = np.where(is_overlapped[: len(graph)], np.int32(link), edges.chain)
