"""The dependency graph of the used steps: what had to happen before what, and how long after.

A node is a moment: a call begins (`CALL`), a wait returns (`RETURN`), device work ends (`WORK`),
a batch is ready (`BATCH`), the window ends on a thread (`END`). An edge says that its target comes
at least some delay after its source. The graph is acyclic, and its nodes are in recorded order,
which every edge follows. So one pass over the edges computes the longest path to every node, which
is the earliest moment at which it can happen.

A *chain* is a line of host work, the processes that load batches, or a stream. Its *tail* is the
moment at which the last thing before the window ended on it.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.trace import Trace
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.trace.tables import Int8, Int32, Int64
from tb_perfadvisor.whatif.device_delays import DeviceDelays, device_delays
from tb_perfadvisor.whatif.program import NEVER, Program
from tb_perfadvisor.whatif.waits import WaitEdges


class NodeKind(IntEnum):
    """What happens at a node."""

    CALL = 0
    RETURN = 1
    WORK = 2
    END = 3
    BATCH = 4


class EdgeKind(IntEnum):
    """Why the target follows the source."""

    HOST = 0
    """The same thread continues. The delay is host work, plus the cost of a call."""
    LAUNCH = 1
    """Work follows its launch."""
    STREAM = 2
    """Work follows the work before it on its stream."""
    CROSS = 3
    """Work follows work of another stream."""
    WAIT = 4
    """A call returns after the work, or the batch, that it waits for."""


class Stretches(Struct, frozen=True):
    """The stretches of host time and of input that edges stand for; columns of shape (spans,)."""

    edge: Int32
    """The edge; sorted."""
    from_ns: Int64
    to_ns: Int64
    cost_ns: Int64
    """For host edges into a wait: the cost of the call itself, part of the delay."""

    def __len__(self) -> int:
        """Number of spans."""
        return len(self.edge)


class Graph(Struct, frozen=True):
    """Nodes and edges as columns. Sources from `len(graph)` on are the tails of the chains."""

    kind: Int8
    row: Int32
    """The event; -1 for the end of the window."""
    chain: Int32
    """Lines of host work come first, then the loading processes, then streams."""
    at_ns: Int64
    """When it happened."""
    duration_ns: Int64
    """Of work; 0 on the host."""
    lines: int
    """Number of chains that are not streams."""
    tail_ns: Int64
    """Per chain, when the last thing before the window ended; `NEVER` if there was none."""
    source: Int32
    target: Int32
    """Sorted."""
    edge_kind: Int8
    delay_ns: Int64
    """Without the duration of the target's work."""
    host_edges: Int32
    """The host edges, thread by thread in order."""
    followed: Int32
    """What a node follows by fixed times alone: the last wait, or the first node, of its thread.
    Work, waits and tails follow themselves. Shape (nodes + 2 * chains,), as `replay` needs it."""
    spans: Stretches
    gap_ns: int
    """What usually lies between two pieces of work on a stream."""
    is_one_run: bool

    def __len__(self) -> int:
        """Number of nodes."""
        return len(self.at_ns)


def build_graph(trace: Trace, program: Program, waits: WaitEdges) -> Graph:
    """The graph of a program's window.

    Args:
        trace: The trace.
        program: The pieces of its window.
        waits: The edges into its waits.
    """
    work = device_delays(trace, program)
    nodes = _Nodes(trace, program, waits)
    edges = [
        nodes.host_edges(waits),
        *nodes.work_edges(work),
        nodes.wait_edges(waits),
        nodes.batch_edges(),
    ]
    source, target = (
        np.concatenate([part[name] for part in edges]) for name in ("source", "target")
    )
    # Clocks are rounded. Drop edges against the recorded order.
    order = np.flatnonzero((source < target) | (source >= len(nodes.at_ns))).astype(np.int32)
    order = order[np.argsort(target[order], kind="stable")]
    spans = _spans(edges, order)
    del source, target
    # Column by column, to save memory: a large profile has millions of edges.
    columns = {
        name: np.concatenate([part.pop(name) for part in edges])[order] for name in _EDGE_COLUMNS
    }
    tail_ns = np.concatenate((np.full(nodes.lines, program.start_ns), program.tail_ns))
    host_edges = np.flatnonzero(columns["edge_kind"] == EdgeKind.HOST).astype(np.int32)
    chain = nodes.chain[columns["target"][host_edges]]
    host_edges = host_edges[np.argsort(chain, kind="stable")]
    return Graph(
        kind=nodes.kind,
        row=nodes.row,
        chain=nodes.chain,
        at_ns=nodes.at_ns,
        duration_ns=nodes.duration_ns,
        lines=nodes.lines,
        tail_ns=tail_ns,
        host_edges=host_edges,
        followed=_followed(nodes, columns, host_edges, 2 * len(tail_ns)),
        spans=spans,
        gap_ns=work.gap_ns,
        is_one_run=program.is_one_run,
        **columns,
    )


def _followed(nodes: _Nodes, edges: _Columns, host_edges: Int32, tails: int) -> Int32:
    """The node that each node follows by fixed times alone."""
    target = edges["target"]
    on_host = target[host_edges]
    may_wait = np.zeros(len(nodes.chain), dtype=np.bool_)
    may_wait[target[edges["edge_kind"] == EdgeKind.WAIT]] = True
    starts = may_wait[on_host] | (np.diff(nodes.chain[on_host], prepend=-1) != 0)
    followed = np.arange(len(nodes.chain) + tails, dtype=np.int32)
    place = np.maximum.accumulate(np.where(starts, np.arange(len(on_host)), 0))
    followed[on_host] = on_host[place]
    return followed


def _spans(parts: list[_Columns], order: Int32) -> Stretches:
    """The spans of those edges that have one.

    Args:
        parts: Edges by kind; some kinds have spans.
        order: The position of each edge of the graph among the edges of all parts.
    """
    begins = np.cumsum([0, *(len(part["source"]) for part in parts)])
    place = np.full(begins[-1], -1, dtype=np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    found: list[tuple[NDArray[np.signedinteger], ...]] = []
    for begin, part in zip(begins.tolist(), parts, strict=False):
        if "from_ns" in part:
            columns = [part.pop(name) for name in _SPAN_COLUMNS]
            from_ns, to_ns, cost_ns = columns
            edge = place[begin : begin + len(from_ns)]
            chosen = (edge >= 0) & ((to_ns > from_ns) | (cost_ns > 0))
            found.append((edge[chosen], *(column[chosen] for column in columns)))
    edge, *columns = (np.concatenate(some) for some in zip(*found, strict=True))
    by_edge = np.argsort(edge)
    return Stretches(edge[by_edge], *(column[by_edge] for column in columns))


class _Nodes:
    """The nodes in order, and the node of each event."""

    def __init__(self, trace: Trace, program: Program, waits: WaitEdges) -> None:
        events, work, batches = trace.events, program.work, program.batches
        workers = len(program.lines)
        lines = workers + 1
        calls = distinct(program.launch)
        # A blocking copy is both: a launch, and a call that returns.
        parts: tuple[tuple[int, Int32, Int32, Int64, Int64], ...] = (
            (NodeKind.CALL, calls, program.line_of[events.track[calls]],
             events.start_ns[calls], events.start_ns[calls]),
            (NodeKind.RETURN, waits.row, program.line_of[events.track[waits.row]],
             waits.returns_ns, events.start_ns[waits.row]),
            (NodeKind.WORK, work, (lines + program.stream).astype(np.int32),
             events.end_ns[work], events.start_ns[work]),
            # The batch comes before the return of the fetch that waits for it.
            (NodeKind.BATCH, batches, np.full(len(batches), workers, dtype=np.int32),
             events.end_ns[batches], events.start_ns[batches] - 1),
            (NodeKind.RETURN, batches, program.line_of[events.track[batches]],
             events.end_ns[batches], events.start_ns[batches]),
            (NodeKind.END, np.full(lines, -1, dtype=np.int32),
             np.arange(lines, dtype=np.int32),
             np.full(lines, program.end_ns), np.full(lines, program.end_ns)),
        )  # fmt: skip
        kind = np.concatenate([np.full(len(row), kind) for kind, row, *_ in parts])
        row, chain, at, began = (np.concatenate([part[i] for part in parts]) for i in (1, 2, 3, 4))
        # The window ends after everything that its threads did in it.
        latest = np.full(int(chain.max(initial=0)) + 1, NEVER, dtype=np.int64)
        np.maximum.at(latest, chain, at)
        is_end = kind == NodeKind.END
        at[is_end] = latest[chain[is_end]]
        # At the same moment: first work ends, then the host continues, then work of no length ends.
        turn = np.where(kind != NodeKind.WORK, 1, np.where(began < at, 0, 2))
        order = np.lexsort((kind, began, turn, at))
        self.kind = kind[order].astype(np.int8)
        self.row, self.chain = row[order].astype(np.int32), chain[order].astype(np.int32)
        self.at_ns = at[order].astype(np.int64)
        self.duration_ns = np.where(self.kind == NodeKind.WORK, (at - began)[order], 0).astype(
            np.int64
        )
        place = np.empty(len(order), dtype=np.int32)
        place[order] = np.arange(len(order), dtype=np.int32)
        bounds = np.cumsum([0, *(len(row) for _, row, *_ in parts)])
        self._call = np.full(len(events) + 1, -1, dtype=np.int32)
        self._call[calls] = place[: bounds[1]]
        self._return = place[bounds[1] : bounds[2]]
        self._work = place[bounds[2] : bounds[3]]
        self._batch = place[bounds[3] : bounds[4]]
        self._fetch_return = place[bounds[4] : bounds[5]]
        self._began = began[order]
        self.lines = lines
        self._program = program

    def _tail(self, chain: Int32) -> Int32:
        return (len(self.at_ns) + chain).astype(np.int32)

    def _source(self, work: Int32, stream: Int32) -> Int32:
        """The node of a position in `Program.work`; the stream's tail for -1."""
        return np.where(work >= 0, self._work[work], self._tail(self.lines + stream)).astype(
            np.int32
        )

    def host_edges(self, waits: WaitEdges) -> _Columns:
        """Each thread continues after what it did before."""
        host = np.flatnonzero(self.chain < self.lines)
        order = host[np.argsort(self.chain[host], kind="stable")]
        first = np.diff(self.chain[order], prepend=-1) != 0
        source = np.where(first, self._tail(self.chain[order]), np.roll(order, 1))
        at = np.where(first, self._program.start_ns, np.roll(self.at_ns[order], 1))
        cost = np.zeros(len(self.at_ns), dtype=np.int64)
        cost[self._return] = waits.cost_ns
        # Waiting is not work: host work before a wait ends where the call begins.
        until = np.where(self.kind == NodeKind.RETURN, self._began, self.at_ns)[order]
        until = np.maximum(until, at)
        call_ns = np.minimum(cost[order], self.at_ns[order] - until)
        return _edges(source, order, EdgeKind.HOST, until - at + call_ns, (at, until, call_ns))

    def work_edges(self, work: DeviceDelays) -> tuple[_Columns, ...]:
        """Work follows its launch, its stream, and work of other streams that it waited for."""
        return (
            _edges(
                self._call[self._program.launch],
                self._work,
                EdgeKind.LAUNCH,
                work.launch_delay_ns,
            ),
            _edges(
                self._source(work.previous, self._program.stream),
                self._work,
                EdgeKind.STREAM,
                work.stream_delay_ns,
            ),
            _edges(
                self._work[work.cross_source],
                self._work[work.cross_target],
                EdgeKind.CROSS,
                work.cross_delay_ns,
            ),
        )

    def wait_edges(self, waits: WaitEdges) -> _Columns:
        """A wait returns after the work that it waits for."""
        return _edges(
            self._source(waits.work, waits.stream),
            self._return[waits.wait],
            EdgeKind.WAIT,
            waits.delay_ns,
        )

    def batch_edges(self) -> _Columns:
        """A fetch returns when its batch is ready."""
        returns = self._fetch_return
        zeros = np.zeros(len(returns), dtype=np.int64)
        span = (self._began[returns], self.at_ns[returns], zeros)
        return _edges(self._batch, returns, EdgeKind.WAIT, zeros, span)


_Columns = dict[str, NDArray[np.signedinteger]]
_EDGE_COLUMNS = {"source": np.int32, "target": np.int32, "edge_kind": np.int8, "delay_ns": np.int64}
_SPAN_COLUMNS = ("from_ns", "to_ns", "cost_ns")


def _edges(
    source: NDArray[np.signedinteger],
    target: NDArray[np.signedinteger],
    kind: EdgeKind,
    delay_ns: Int64,
    span: tuple[Int64, Int64, Int64] | None = None,
) -> _Columns:
    """Edges of one kind. A span is its start, its end, and the cost of the call."""
    columns = {"source": source, "target": target, "edge_kind": int(kind), "delay_ns": delay_ns}
    made: _Columns = {
        name: np.broadcast_to(np.asarray(columns[name], dtype=dtype), np.shape(source))
        for name, dtype in _EDGE_COLUMNS.items()
    }
    if span is not None:
        made |= zip(_SPAN_COLUMNS, span, strict=True)
    return made
