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
from msgspec import Struct, field
from numpy.typing import NDArray

from tb_perfadvisor.signals import Cause, Signals, ranks_of
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.ranks.ranks import CAUSES
from tb_perfadvisor.signals.ranks.stragglers import uncovered_waits
from tb_perfadvisor.signals.recording.profiler_overhead import profiler_overhead
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.intervals import (
    EMPTY,
    Intervals,
    complement,
    intersect,
    join,
    overlap_ns,
    shared_ns,
    total_ns,
    union,
)
from tb_perfadvisor.trace.tables import Float64, Int32, Int64
from tb_perfadvisor.units import format_share
from tb_perfadvisor.whatif.graph import EdgeKind, Graph, NodeKind, build_graph, wait_edges
from tb_perfadvisor.whatif.program import HOST_HIDDEN, NEVER, NotReplayable, Program, find_program

DEVIATION = 0.02
"""How far the replay of the unchanged program may differ from the recorded steps, and for how much
of them calls may wait for something that the file does not show."""
HIDDEN_SHARE = 0.1
"""If nothing of the host is recorded during more device work than this, the host may be waiting or
working, and the worth of a faster device is unknown."""
LONGEST_PAUSE_NS = 1_000_000
"""Python between two operators takes less than this, and less than a hundredth of a step."""
LEAST_RECORDING_SHARE = 0.01
"""Below this share, a host without the profiler is not replayed separately."""
HEAVY_RECORDING_SHARE = 0.1
"""Only a part of what recording costs is visible: its cost in calls of the device runtime is not.
From this share on, the invisible part may be what keeps the host from running ahead."""


class Simulation(Struct, frozen=True):
    """The used steps, ready to be replayed."""

    graph: Graph
    length_ns: int
    """Of the used steps, replayed without a change."""
    pauses: Intervals = EMPTY
    """When recording visibly delayed the host; empty if that is negligible."""
    without_pauses: RemovedTime | None = None
    """The pauses, as time removed from the graph."""
    unrecorded_ns: int | None = None
    """Length of the used steps without the pauses."""
    saved_by_fixes: dict[tuple[int, ...], tuple[tuple[Fix, ...], int]] = field(default_factory=dict)
    """Results so far: fixes and what they save, by the identities of the fixes."""

    @property
    def host_speed_is_unknown(self) -> bool:
        """Whether recording delayed the host so much that its own speed is unknown."""
        return total_ns(self.pauses) > HEAVY_RECORDING_SHARE * self.length_ns

    def leaves_out_pauses(self, *fixes: Fix) -> bool:
        """Whether fixes are judged without the pauses that recording caused."""
        return self.unrecorded_ns is not None and _depends_on_host(*fixes)

    def saved_ns(self, *fixes: Fix) -> int:
        """Compute what fixes save together, at least 0.

        If the speed of the host matters, that is its speed without the profiler.
        """
        # Ranking asks again for each finding. Storing the fixes keeps their ids from being reused.
        key = tuple(map(id, fixes))
        if key not in self.saved_by_fixes:
            self.saved_by_fixes[key] = (fixes, self._saved_ns(fixes))
        return self.saved_by_fixes[key][1]

    def _saved_ns(self, fixes: tuple[Fix, ...]) -> int:
        if self.unrecorded_ns is None or not self.leaves_out_pauses(*fixes):
            return max(self.length_ns - replay(self.graph, fixes), 0)
        return max(self.unrecorded_ns - replay(self.graph, fixes, self.without_pauses), 0)


def host_decides(*fixes: Fix) -> bool:
    """Whether the worth of these fixes depends on the host: that of a faster device does."""
    return any(isinstance(fix, Shorten | Overlap) for fix in fixes)


@memoized
def program(signals: Signals) -> Program | NotReplayable:
    """The parts of the program in the used steps, or why they cannot be told apart."""
    return find_program(signals)


@memoized
def sees_host(signals: Signals) -> bool:
    """Whether the profile shows what the host does while the device works."""
    pieces, window_ns = program(signals), signals.attribution.window_ns
    return (
        not isinstance(pieces, NotReplayable)
        and _hidden_ns(signals, pieces) <= HIDDEN_SHARE * window_ns
    )


@memoized
def simulation(signals: Signals) -> Simulation | NotReplayable:
    """The simulation of the used window, or why there is none."""
    pieces = program(signals)
    if isinstance(pieces, NotReplayable):
        return pieces
    window_ns = signals.attribution.window_ns
    waits = wait_edges(signals.trace, pieces)
    # Check this before building the graph, which takes most of the time and memory.
    if waits.unexplained_ns > DEVIATION * window_ns:
        return NotReplayable("calls wait for what the profile does not show")
    graph = build_graph(signals.trace, pieces, waits)
    length_ns = replay(graph)
    if abs(length_ns - window_ns) > DEVIATION * window_ns:
        share = format_share(length_ns / window_ns)
        return NotReplayable(f"a replay without any change takes {share} of the recorded time")
    pauses = profiler_overhead(signals).pauses
    if total_ns(pauses) <= LEAST_RECORDING_SHARE * window_ns:
        return Simulation(graph, length_ns)
    without_pauses = remove_time(graph, pauses)
    return Simulation(graph, length_ns, pauses, without_pauses, replay(graph, (), without_pauses))


def simulation_for(signals: Signals, *fixes: Fix) -> Simulation | NotReplayable:
    """The simulation if it can judge these fixes. Otherwise it is not built, which saves time."""
    pieces = program(signals)
    if isinstance(pieces, NotReplayable):
        return pieces
    if host_decides(*fixes) and not sees_host(signals):
        return HOST_HIDDEN
    return simulation(signals)


def _hidden_ns(signals: Signals, program: Program) -> int:
    """How long the device works while nothing of the threads that run the steps is recorded."""
    events = signals.trace.events
    on_line = is_in(events.track, program.lines[0]) & (events.kind != EventKind.STEP)
    shown = events.spans(on_line)
    unseen = complement(shown, program.start_ns, program.end_ns)
    longest_ns = min(LONGEST_PAUSE_NS, signals.steps.window_ns // signals.steps.count // 100)
    unseen = unseen[unseen[:, 1] - unseen[:, 0] > longest_ns]
    return shared_ns(unseen, signals.device.busy)


def _depends_on_host(*fixes: Fix) -> bool:
    """Whether the worth of these fixes depends on how fast the host launches."""
    return host_decides(*fixes) or any(
        isinstance(fix, Remove) and fix.is_launching for fix in fixes
    )


# Savings are those of the critical rank, which the others wait for in collectives. A change saves
# at most the time until another rank becomes the slowest. The change is made on all ranks: it takes
# the same share of each cause off every rank.

_COMMUNICATION = CAUSES.index(Cause.COMMUNICATION)


class OtherRanks(Struct, frozen=True):
    """Where the time of the other ranks goes, without their waiting for one another."""

    cause_ns: Float64
    """Shape (other ranks, causes), scaled to the number of steps of the critical rank."""
    window_ns: int
    """Of the critical rank."""
    intervals: tuple[Intervals, ...]
    """The time of each cause on the critical rank."""

    def most_saved_ns(self, claims: Intervals) -> int:
        """The most that a change can save of the used window, given the time that it claims."""
        left = np.array(
            [
                1 - shared_ns(claims, intervals) / max(1, total_ns(intervals))
                for intervals in self.intervals
            ]
        )
        return max(self.window_ns - round(float((self.cause_ns @ left).max())), 0)


@memoized
def other_ranks(signals: Signals) -> OtherRanks | None:
    """The other ranks; None for a single rank, or if not every collective is known of all ranks.

    Also None on the CPU: ranks that share the cores of a host take turns, and compute longer where
    they would otherwise wait.
    """
    ranks = ranks_of(signals)
    if signals.device.is_host_only:
        return None
    known = [len(summary.collectives) for summary in ranks.summaries]
    matched = np.bincount(ranks.matched.rank, minlength=len(ranks))
    left_out = any(summary.collectives.left_out for summary in ranks.summaries)
    if len(ranks) < 2 or not len(ranks.matched) or left_out or (matched != known).any():
        return None
    if not ranks.matched.is_whole.all():
        return None
    waits = np.bincount(ranks.matched.rank, uncovered_waits(ranks), minlength=len(ranks))
    cause_ns = np.stack([summary.cause_total_ns for summary in ranks.summaries]).astype(np.float64)
    cause_ns[:, _COMMUNICATION] = np.maximum(cause_ns[:, _COMMUNICATION] - waits, 0)
    steps = np.array([summary.step_count for summary in ranks.summaries])
    critical_steps = ranks.summaries[signals.worker].step_count
    others = np.arange(len(ranks)) != signals.worker
    attribution = signals.attribution
    return OtherRanks(
        (cause_ns * (critical_steps / steps)[:, np.newaxis])[others],
        attribution.window_ns,
        tuple(attribution.intervals[cause] for cause in CAUSES),
    )


def most_saved_ns(signals: Signals, claims: Intervals) -> int:
    """The most that a change can save of the used window, given the time that it claims.

    This is the length of the window if the other ranks are unknown.
    """
    others = other_ranks(signals)
    return signals.attribution.window_ns if others is None else others.most_saved_ns(claims)


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
