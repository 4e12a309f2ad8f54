"""Re-times a graph, as recorded or with fixes.

A window of steps stands for a program that goes on and on: it is run again and again, each time
from where the last left its threads and streams, until each of them takes as long as before;
the slowest of them then sets the pace. So filling the queue once is not charged to a step, and
a device that cannot keep up is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.trace.intervals import join, overlap_ns
from tb_perfadvisor.trace.tables import Int32, Int64
from tb_perfadvisor.whatif.fixes import Async, Fix, Overlap, Remove, Shorten
from tb_perfadvisor.whatif.graph import ArcKind, Graph, NodeKind
from tb_perfadvisor.whatif.program import NEVER

MOST_LAPS = 6
"""Two or three suffice, unless one of two equally fast lines slowly catches up with the other."""


@dataclass(frozen=True, slots=True)
class Retimed:
    """What became of the window."""

    length_ns: int
    """From one end of the window to the next; of a single run, from its start to its end."""
    at_ns: list[int]
    """When each node came, the first time; then the tails."""


@dataclass(slots=True)
class _Arcs:
    """A graph's arcs as fixes change them."""

    source: Int32
    lag_ns: Int64
    is_kept: NDArray[np.bool_]
    duration_ns: Int64
    """Per node."""
    chain: Int32
    """Per node. Work beside all others goes to a chain beside its stream's."""


def retime(graph: Graph, fixes: Sequence[Fix] = ()) -> Retimed:
    """Run a graph with some fixes applied."""
    arcs = _Arcs(
        graph.source.copy(),
        graph.lag_ns.copy(),
        np.ones(len(graph.target), dtype=np.bool_),
        graph.duration_ns.copy(),
        graph.chain.copy(),
    )
    _apply(graph, arcs, fixes)
    kept = arcs.is_kept
    source, target = arcs.source[kept].tolist(), graph.target[kept].tolist()
    weight = (arcs.lag_ns + arcs.duration_ns[graph.target])[kept].tolist()
    count, chains = len(graph), len(graph.tail_ns)
    # The last node of each chain that has one: its tail the next time.
    last = {chain: node for node, chain in enumerate(arcs.chain.tolist())}
    at = [NEVER] * count + graph.tail_ns.tolist() + [NEVER] * chains
    paced = [chain for chain in last if chain == 0 or chain >= graph.lines]
    first: list[int] = []
    advances: list[int] = []
    for _ in range(1 if graph.is_one_run else MOST_LAPS):
        for origin, node, lag in zip(source, target, weight, strict=True):
            moment = at[origin] + lag
            if moment > at[node]:
                at[node] = moment
        first = first or at
        previous, tails = advances, at[count:]
        advances = [at[last[chain]] - tails[chain] for chain in paced]
        if advances == previous:
            break
        for chain, node in last.items():
            tails[chain] = at[node]
        at = [NEVER] * count + tails
    if graph.is_one_run:
        return Retimed(max(first[last[chain]] for chain in paced) - int(graph.tail_ns[0]), first)
    return Retimed(max(advances), first)


def _apply(graph: Graph, arcs: _Arcs, fixes: Sequence[Fix]) -> None:
    for fix in fixes:
        if isinstance(fix, Async):
            _release(graph, arcs, fix.rows)
        elif isinstance(fix, Shorten):
            order = np.argsort(fix.rows)
            rows = fix.rows[order]
            nodes = np.flatnonzero((graph.kind == NodeKind.WORK) & np.isin(graph.row, rows))
            shorter = fix.duration_ns[order][np.searchsorted(rows, graph.row[nodes])]
            arcs.duration_ns[nodes] = np.minimum(arcs.duration_ns[nodes], shorter)
    removed = [fix.intervals for fix in fixes if isinstance(fix, Remove)]
    if removed:
        own = np.flatnonzero((graph.arc_kind == ArcKind.HOST) & (graph.chain[graph.target] == 0))
        gone = overlap_ns(join(*removed), graph.from_ns, graph.to_ns)
        arcs.lag_ns[own] -= gone[own]
        # Who does not fetch waits for no batch.
        waits = (graph.arc_kind == ArcKind.WAIT) & (graph.to_ns > graph.from_ns)
        arcs.is_kept &= ~(waits & (gone == graph.to_ns - graph.from_ns))
    beside = [fix.rows for fix in fixes if isinstance(fix, Overlap)]
    if beside:
        _set_apart(graph, arcs, np.unique(np.concatenate(beside)))


def _release(graph: Graph, arcs: _Arcs, rows: Int32) -> None:
    """Calls return without waiting; synchronisations are gone altogether."""
    is_released = (graph.kind == NodeKind.RETURN) & np.isin(graph.row, rows)
    into = is_released[graph.target]
    arcs.is_kept &= ~(into & (graph.arc_kind == ArcKind.WAIT))
    # A copy that does not wait must still be launched.
    launches = graph.row[graph.kind == NodeKind.CALL]
    own = into & (graph.arc_kind == ArcKind.HOST) & ~np.isin(graph.row[graph.target], launches)
    arcs.lag_ns[own] -= graph.cost_ns[own]


def _set_apart(graph: Graph, arcs: _Arcs, rows: Int32) -> None:
    """Work that neither waits for other work nor is waited for by it.

    A call that waited for it waits for what its stream did before. Copies that their own call
    waits for stay: their result is wanted at once.
    """
    is_apart = np.zeros(len(graph) + len(graph.tail_ns), dtype=np.bool_)
    awaited = arcs.source[graph.arc_kind == ArcKind.WAIT]
    awaiting = graph.target[graph.arc_kind == ArcKind.WAIT]
    launches = graph.row[graph.kind == NodeKind.CALL]
    own_result = awaited[np.isin(graph.row[awaiting], launches)]
    is_apart[: len(graph)] = (graph.kind == NodeKind.WORK) & np.isin(graph.row, rows)
    is_apart[own_result] = False
    from_apart, into_apart = is_apart[arcs.source], is_apart[graph.target]
    arcs.is_kept &= ~((graph.arc_kind == ArcKind.CROSS) & (from_apart | into_apart))
    chains = len(graph.tail_ns)
    before: dict[int, int] = {}
    beside: dict[int, int] = {}
    followers = np.isin(graph.arc_kind, (ArcKind.STREAM, ArcKind.WAIT)) & (from_apart | into_apart)
    for arc in np.flatnonzero(followers).tolist():
        node, source = int(graph.target[arc]), int(arcs.source[arc])
        source = before.get(source, source)
        if is_apart[node]:
            # What follows it follows what preceded it; it follows the last one set apart.
            before[node] = source
            stream = int(graph.chain[node])
            source = beside.get(stream, len(graph) + chains + stream)
            beside[stream] = node
        arcs.source[arc] = source
        if graph.arc_kind[arc] == ArcKind.STREAM:
            arcs.lag_ns[arc] = min(int(arcs.lag_ns[arc]), graph.gap_ns)
    own = np.flatnonzero(is_apart[: len(graph)])
    arcs.chain[own] += chains
