"""Re-times a graph, as recorded or with fixes.

A window of steps stands for a program that goes on and on: it is run again and again, each time
from where the last left its threads and streams, until each of them takes as long as before;
the slowest of them then sets the pace. So filling the queue once is not charged to a step, and
a device that cannot keep up is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.intervals import Intervals, complement, intersect, join, overlap_ns
from tb_perfadvisor.trace.tables import Int32, Int64
from tb_perfadvisor.whatif.fixes import Async, Fix, Overlap, Remove, Shorten
from tb_perfadvisor.whatif.graph import ArcKind, Graph, NodeKind
from tb_perfadvisor.whatif.joins import Joins, last_of_chains, plan_joins
from tb_perfadvisor.whatif.laps import lap_of
from tb_perfadvisor.whatif.program import NEVER

_EVER_NS = 2**62

MOST_LAPS = 6
"""Two or three suffice, unless one of two equally fast lines slowly catches up with the other."""


class _Arcs(Struct):
    """A graph's arcs as fixes change them."""

    source: Int32
    lag_ns: Int64
    is_kept: NDArray[np.bool_]
    duration_ns: Int64
    """Per node."""
    chain: Int32
    """Per node. Work beside all others goes to a chain beside its stream's."""


class Gone(Struct, frozen=True):
    """Time that is gone in any case, as `take_away` works it out once for all re-timings."""

    lost_ns: Int64
    """What each of the graph's spans loses; shape (spans,)."""
    rest: Intervals
    """All other time."""


def take_away(graph: Graph, intervals: Intervals) -> Gone:
    """Take some time away from a graph."""
    lost_ns = overlap_ns(intervals, graph.spans.from_ns, graph.spans.to_ns)
    return Gone(lost_ns, complement(intervals, -_EVER_NS, _EVER_NS))


def retime(graph: Graph, fixes: Sequence[Fix] = (), gone: Gone | None = None) -> int:
    """How long a graph takes with some fixes applied.

    Args:
        graph: What was recorded.
        fixes: What to change.
        gone: Time that is gone as well.

    Returns:
        From one end of the window to the next; of a single run, from its start to its end.
    """
    arcs = _Arcs(
        graph.source,
        graph.lag_ns.copy(),
        np.ones(len(graph.target), dtype=np.bool_),
        graph.duration_ns.copy(),
        graph.chain,
    )
    _apply(graph, arcs, fixes, gone)
    tail_ns: list[int] = graph.tail_ns.tolist()
    # Work beside all others has chains of its own.
    tail_ns += [NEVER] * len(tail_ns)
    chains, last = last_of_chains(arcs.chain, len(tail_ns))
    weight = arcs.lag_ns + arcs.duration_ns[graph.target]
    if arcs.source is graph.source and arcs.is_kept.all():
        joins = graph.joins.joins(weight)
    else:
        source, target = arcs.source[arcs.is_kept], graph.target[arcs.is_kept]
        plan = plan_joins(source, target, arcs.chain, len(tail_ns), last)
        joins = plan.joins(weight[arcs.is_kept])
    lap = lap_of(joins)
    bound = _bound_chains(joins, chains.tolist(), tail_ns)
    paced = np.flatnonzero((chains == 0) | (chains >= graph.lines)).tolist()
    begun = [tail_ns[chain] for chain in chains.tolist()]
    advances: list[int] = []
    for _ in range(1 if graph.is_one_run else MOST_LAPS):
        reached = lap(tail_ns)
        gained = [end_ns - begin_ns for end_ns, begin_ns in zip(reached, begun, strict=True)]
        previous, advances = advances, [gained[end] for end in paced]
        # All that is bound to each other comes later by the same: so it would the next time.
        if advances == previous or len({gained[end] for end in bound}) == 1:
            break
        # The last node of each chain is its tail the next time.
        begun = reached
        for chain, end_ns in zip(chains.tolist(), reached, strict=True):
            tail_ns[chain] = end_ns
    if graph.is_one_run:
        longest: int = max(reached[end] for end in paced)
        return longest - int(graph.tail_ns[0])
    return max(advances)


def _bound_chains(joins: Joins, chains: Sequence[int], tail_ns: Sequence[int]) -> list[int]:
    """The chains on which others hang, or that hang on others.

    Args:
        joins: What remains of the graph.
        chains: Those that there are, of which the last nodes are wanted.
        tail_ns: When each of all tails came.

    Returns:
        Their places; none where work hangs on a moment that stays as the others go on.
    """
    sources = distinct(np.concatenate((joins.source, joins.other_source)))
    leading = {*sources[sources < len(tail_ns)].tolist()}
    ends = list(enumerate(zip(chains, joins.end_source.tolist(), strict=True)))
    leading |= {root for _, (own, root) in ends if own != root < len(tail_ns)}
    if any(tail_ns[tail] != NEVER for tail in leading.difference(chains)):
        return []
    return [place for place, (own, root) in ends if own in leading or root != own]


def _apply(graph: Graph, arcs: _Arcs, fixes: Sequence[Fix], gone: Gone | None) -> None:
    for fix in fixes:
        if isinstance(fix, Async):
            _release(graph, arcs, fix.rows)
    shorter = [fix for fix in fixes if isinstance(fix, Shorten)]
    if shorter:
        _shorten(graph, arcs, shorter)
    removed = [fix.intervals for fix in fixes if isinstance(fix, Remove)]
    if removed or gone is not None:
        _remove(graph, arcs, join(*removed), gone)
    beside = [fix.rows for fix in fixes if isinstance(fix, Overlap)]
    if beside:
        _set_apart(graph, arcs, distinct(np.concatenate(beside)))


def _remove(graph: Graph, arcs: _Arcs, intervals: Intervals, gone: Gone | None) -> None:
    spans = graph.spans
    if gone is None:
        lost_ns = overlap_ns(intervals, spans.from_ns, spans.to_ns)
    else:
        rest = intersect(intervals, gone.rest)
        lost_ns = gone.lost_ns + overlap_ns(rest, spans.from_ns, spans.to_ns)
    kind = graph.arc_kind[spans.arc]
    own = (kind == ArcKind.HOST) & (graph.chain[graph.target[spans.arc]] == 0)
    arcs.lag_ns[spans.arc[own]] -= lost_ns[own]
    # Who does not fetch waits for no batch.
    all_lost = lost_ns == spans.to_ns - spans.from_ns
    arcs.is_kept[spans.arc[(kind == ArcKind.WAIT) & all_lost]] = False


def _shorten(graph: Graph, arcs: _Arcs, fixes: Sequence[Shorten]) -> None:
    work = np.flatnonzero(graph.kind == NodeKind.WORK)
    rows = [fix.rows for fix in fixes]
    last = max(int(own.max(initial=-1)) for own in (*rows, graph.row))
    node_of = np.full(last + 1, -1, dtype=np.int64)
    node_of[graph.row[work]] = work
    for fix in fixes:
        nodes = node_of[fix.rows]
        inside = nodes >= 0
        nodes, duration_ns = nodes[inside], fix.duration_ns[inside]
        arcs.duration_ns[nodes] = np.minimum(arcs.duration_ns[nodes], duration_ns)


def _release(graph: Graph, arcs: _Arcs, rows: Int32) -> None:
    """Calls return without waiting; synchronizations are gone altogether."""
    is_released = (graph.kind == NodeKind.RETURN) & is_in(graph.row, rows)
    into = is_released[graph.target]
    arcs.is_kept &= ~(into & (graph.arc_kind == ArcKind.WAIT))
    # A copy that does not wait must still be launched.
    launches = graph.row[graph.kind == NodeKind.CALL]
    own = into & (graph.arc_kind == ArcKind.HOST) & ~is_in(graph.row[graph.target], launches)
    freed = own[graph.spans.arc]
    arcs.lag_ns[graph.spans.arc[freed]] -= graph.spans.cost_ns[freed]


def _set_apart(graph: Graph, arcs: _Arcs, rows: Int32) -> None:
    """Work that neither waits for other work nor is waited for by it.

    A call that waited for it waits for what its stream did before. Copies that their own call
    waits for stay: their result is wanted at once.
    """
    is_apart = np.zeros(len(graph) + len(graph.tail_ns), dtype=np.bool_)
    awaited = arcs.source[graph.arc_kind == ArcKind.WAIT]
    awaiting = graph.target[graph.arc_kind == ArcKind.WAIT]
    launches = graph.row[graph.kind == NodeKind.CALL]
    own_result = awaited[is_in(graph.row[awaiting], launches)]
    is_apart[: len(graph)] = (graph.kind == NodeKind.WORK) & is_in(graph.row, rows)
    is_apart[own_result] = False
    from_apart, into_apart = is_apart[arcs.source], is_apart[graph.target]
    arcs.is_kept &= ~((graph.arc_kind == ArcKind.CROSS) & (from_apart | into_apart))
    chains = len(graph.tail_ns)
    before: dict[int, int] = {}
    beside: dict[int, int] = {}
    follows = (graph.arc_kind == ArcKind.STREAM) | (graph.arc_kind == ArcKind.WAIT)
    followers = np.flatnonzero(follows & (from_apart | into_apart))
    stream_of, apart = graph.chain.tolist(), is_apart.tolist()
    sources = arcs.source[followers].tolist()
    for slot, node in enumerate(graph.target[followers].tolist()):
        source = sources[slot]
        source = before.get(source, source)
        if apart[node]:
            # What follows it follows what preceded it; it follows the last one set apart.
            before[node] = source
            stream = stream_of[node]
            source = beside.get(stream, len(graph) + chains + stream)
            beside[stream] = node
        sources[slot] = source
    arcs.source = arcs.source.copy()
    arcs.source[followers] = sources
    along = followers[graph.arc_kind[followers] == ArcKind.STREAM]
    arcs.lag_ns[along] = np.minimum(arcs.lag_ns[along], graph.gap_ns)
    arcs.chain = arcs.chain + is_apart[: len(graph)] * np.int32(chains)
