"""The graph of dependencies, and waits in it.

Files rarely record which stream a call waits for. A call that had to wait returned right after the
work that it waited for. A call that did not have to wait is assumed to wait for the stream that its
thread used last.

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

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct, is_in, row_mask
from tb_perfadvisor.trace.tables import Int8, Int32, Int64
from tb_perfadvisor.whatif.device_delays import DeviceDelays, device_delays
from tb_perfadvisor.whatif.program import NEVER, Program

ROUNDING_NS = 2_000
"""Clocks of host and device are matched to about a microsecond."""

MOST_LAUNCHES = 10
"""A call with nothing to wait for takes about as long as a launch. A call that takes this many
times as long waits for something."""

_EVERY_STREAM = regex(r"^(cuda|hip)DeviceSynchronize|^(cu|hip)CtxSynchronize")


class WaitEdges(Struct, frozen=True):
    """Waiting calls, and the work that each one waits for."""

    row: Int32
    """Rows of the calls; shape (waits,)."""
    returns_ns: Int64
    cost_ns: Int64
    """Duration of the call when there is nothing to wait for."""
    wait: Int32
    """Position in `row`; shape (edges,)."""
    work: Int32
    """Position in `Program.work`; -1 for work before the window."""
    stream: Int32
    delay_ns: Int64
    unexplained_ns: int
    """How long calls took beyond their usual cost, although no work explains it."""


def wait_edges(trace: Trace, program: Program) -> WaitEdges:
    """Find the edges into the waits of the window."""
    events, rows = trace.events, program.waits
    start, end = events.start_ns[rows], np.minimum(events.end_ns[rows], program.end_ns)
    wait, work, stream = _waited_for(trace, program, start, end)
    finished = np.where(work >= 0, events.end_ns[program.work[work]], program.tail_ns[stream])
    returns = end.copy()
    np.maximum.at(returns, wait, finished)
    length = returns - start
    # Of several streams, the record shows the one that finished last.
    latest = np.full(len(rows), NEVER, dtype=np.int64)
    np.maximum.at(latest, wait, finished)
    is_last = finished == latest[wait]
    held = is_last & (finished > start[wait])
    overhead = returns[wait] - finished
    # Long waits show what a call does after the wait; the others show what a call costs.
    clear = held & (finished - start[wait] > overhead)
    after = int(np.median(overhead[clear])) if clear.any() else 0
    was_held = np.zeros(len(rows), dtype=np.bool_)
    was_held[wait[held]] = True
    is_launch = row_mask(len(events), program.launch)
    is_copy = is_launch[rows]
    is_launch[rows] = False
    # The call that copies from pageable memory fills the staging buffer itself, so it takes longer.
    filling = events.launched_by[trace.copies.row[trace.copies.pageable == 1]]
    is_launch[filling[filling >= 0]] = False
    calls = np.flatnonzero(is_launch)
    launching = _median(events.duration_ns[calls], after)
    synchronizing = _median(length[~was_held & ~is_copy], after)
    cost = np.where(is_copy, launching, min(synchronizing, MOST_LAUNCHES * launching))
    # The return shows what the call waited for, unless its own cost explains its length better.
    binding = is_last & (np.abs(overhead - after) <= np.abs(length - cost)[wait])
    is_bound = np.zeros(len(rows), dtype=np.bool_)
    is_bound[wait[binding]] = True
    unexplained = length - cost
    np.minimum.at(unexplained, wait[is_last], (overhead - after)[is_last])
    return WaitEdges(
        row=rows,
        returns_ns=returns,
        cost_ns=np.where(is_bound, np.minimum(cost, length), length),
        wait=wait,
        work=work,
        stream=stream,
        delay_ns=np.where(binding, overhead, np.minimum(after, overhead)),
        unexplained_ns=int(np.maximum(unexplained, 0).sum()),
    )


def _median(values: Int64, default: int) -> int:
    return int(np.median(values)) if len(values) else default


def _waited_for(
    trace: Trace, program: Program, start: Int64, end: Int64
) -> tuple[Int32, Int32, Int32]:
    """Positions of each wait, of the work that it waits for, and the stream of that work."""
    events, rows, stream = trace.events, program.waits, program.stream
    finish = events.end_ns[program.work]
    count = len(program.tail_ns)
    # Per stream: the last work that was queued before each wait, and when it ended.
    last = np.full((count, len(rows)), -1, dtype=np.int32)
    for number in range(count):
        of_stream = np.flatnonzero(stream == number)
        launched = np.maximum.accumulate(events.start_ns[program.launch[of_stream]])
        slot = np.searchsorted(launched, start, side="left") - 1
        last[number] = np.where(slot >= 0, of_stream[np.maximum(slot, 0)], -1)
    ended = np.where(last >= 0, finish[last], program.tail_ns[:, None])
    # If a stream's work continued after the return, the call did not wait for that stream.
    fits = ended <= end + ROUNDING_NS
    names = [trace.name(row) for row in rows.tolist()]
    every = np.array([bool(_EVERY_STREAM.match(name)) for name in names], dtype=np.bool_)
    chosen = fits & every
    choice = np.where(fits, ended, NEVER - 1).argmax(axis=0)
    held = ended[choice, np.arange(len(rows))] > start
    choice = np.where(held, choice, _last_used(trace, program, start))
    single = np.flatnonzero(~every)
    chosen[choice[single], single] = fits[choice[single], single]
    _use_recorded_streams(trace, program, chosen, fits)
    copy_work = _work_of_blocking_copies(program, end, finish)
    copies = np.flatnonzero(copy_work >= 0)
    chosen[:, copies] = False
    streams, wait = np.nonzero(chosen)
    return (
        np.concatenate((wait, copies)).astype(np.int32),
        np.concatenate((last[streams, wait], copy_work[copies])).astype(np.int32),
        np.concatenate((streams, stream[copy_work[copies]])).astype(np.int32),
    )


def _last_used(trace: Trace, program: Program, start: Int64) -> Int32:
    """The stream on which the waiting thread last launched work; the busiest stream before that."""
    events = trace.events
    used = np.full(len(start), np.bincount(program.stream).argmax(), dtype=np.int32)
    line = program.line_of[events.track[program.launch]]
    waiting = program.line_of[events.track[program.waits]]
    for number in range(len(program.lines)):
        work = np.flatnonzero(line == number)
        work = work[np.argsort(events.start_ns[program.launch[work]], kind="stable")]
        waits = np.flatnonzero(waiting == number)
        slot = np.searchsorted(events.start_ns[program.launch[work]], start[waits]) - 1
        has_launched = slot >= 0
        used[waits[has_launched]] = program.stream[work[slot[has_launched]]]
    return used


def _use_recorded_streams(
    trace: Trace, program: Program, chosen: NDArray[np.bool_], fits: NDArray[np.bool_]
) -> None:
    """Take the stream from the device's own rows of waits, if the file has them."""
    events = trace.events
    rows = trace.rows(EventKind.DEVICE_SYNC)
    rows = rows[is_in(events.launched_by[rows], program.waits)]
    if len(rows) == 0:
        return
    tracks = events.track[program.work].tolist()
    numbers = dict(zip(tracks, program.stream.tolist(), strict=True))
    place = np.searchsorted(program.waits, events.launched_by[rows])
    for wait, track in zip(place.tolist(), events.track[rows].tolist(), strict=True):
        if track in numbers and fits[numbers[track], wait]:
            chosen[:, wait] = False
            chosen[numbers[track], wait] = True


def _work_of_blocking_copies(program: Program, end: Int64, finish: Int64) -> Int32:
    """For blocking copies, the work that they launched; -1 for all other waits."""
    work = np.full(len(program.waits), -1, dtype=np.int32)
    is_wait = is_in(program.launch, program.waits)
    position = np.flatnonzero(is_wait)
    place = np.searchsorted(program.waits, program.launch[position])
    done = finish[position] <= end[place] + ROUNDING_NS
    work[place[done]] = position[done]
    return work


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
    stream_edges: Int32
    """The edges along streams, stream by stream in order."""
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
    """The graph of a program's window."""
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
    host_edges = _by_chain(nodes, columns, EdgeKind.HOST)
    return Graph(
        kind=nodes.kind,
        row=nodes.row,
        chain=nodes.chain,
        at_ns=nodes.at_ns,
        duration_ns=nodes.duration_ns,
        lines=nodes.lines,
        tail_ns=tail_ns,
        host_edges=host_edges,
        stream_edges=_by_chain(nodes, columns, EdgeKind.STREAM),
        followed=_followed(nodes, columns, host_edges, 2 * len(tail_ns)),
        spans=spans,
        gap_ns=work.gap_ns,
        is_one_run=program.is_one_run,
        **columns,
    )


def _by_chain(nodes: _Nodes, edges: _Columns, kind: EdgeKind) -> Int32:
    """The edges of a kind along chains, chain by chain in order."""
    of_kind = np.flatnonzero(edges["edge_kind"] == kind).astype(np.int32)
    chain = nodes.chain[edges["target"][of_kind]]
    return of_kind[np.argsort(chain, kind="stable")]


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

    `order` has the position of each edge of the graph among the edges of all parts.
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
        at = np.minimum(at + self._held_ns(source), until)
        call_ns = np.minimum(cost[order], self.at_ns[order] - until)
        return _edges(source, order, EdgeKind.HOST, until - at + call_ns, (at, until, call_ns))

    def _held_ns(self, source: Int32) -> Int64:
        """How long the call of each node waited for room in the queue, before it went on."""
        held = np.zeros(len(self.at_ns) + self.lines, dtype=np.int64)
        held[self._call[self._program.held]] = self._program.held_ns
        held_ns: Int64 = held[source]
        return held_ns

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
