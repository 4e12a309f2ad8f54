"""The dependency graph of a window: what had to happen before what, and how long after.

A node is a moment: a call begins (`CALL`), a wait returns (`RETURN`), device work ends (`WORK`),
a batch is ready (`BATCH`), the window ends on a thread (`END`). An arc says that its target comes
no earlier than some lag after its source. Nodes are in the order of the record, which every arc
follows, so one pass over the arcs re-times everything.

A *chain* is a line of host work, the workers that make batches at their own pace, or a stream.
What came before the window on a chain is its *tail*: the graph can be run again and again, each
time from the tails of the time before.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cached_property

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.trace import Trace
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.trace.tables import Int8, Int32, Int64
from tb_perfadvisor.whatif.device_delays import WorkArcs, work_arcs
from tb_perfadvisor.whatif.joins import JoinPlan, last_of_chains, plan_joins
from tb_perfadvisor.whatif.program import Program
from tb_perfadvisor.whatif.waits import WaitArcs, wait_arcs


class NodeKind(IntEnum):
    """What happens at a node."""

    CALL = 0
    RETURN = 1
    WORK = 2
    END = 3
    BATCH = 4


class ArcKind(IntEnum):
    """Why the target follows the source."""

    HOST = 0
    """The same thread goes on: its lag is host work, its span, and a call's own cost."""
    LAUNCH = 1
    """Work follows its launch."""
    STREAM = 2
    """Work follows what its stream did before."""
    CROSS = 3
    """Work follows work of another stream."""
    WAIT = 4
    """A call returns after the work, or the batch, that it waits for."""


class Spans(Struct, frozen=True):
    """Arcs that stand for time of the host or of input, as columns of shape (spans,)."""

    arc: Int32
    """Sorted."""
    from_ns: Int64
    to_ns: Int64
    cost_ns: Int64
    """Of host arcs into a wait: the call's own time, part of the lag."""

    def __len__(self) -> int:
        """Number of them."""
        return len(self.arc)


class Graph(Struct, frozen=True, dict=True):
    """Nodes and arcs as columns. Sources beyond the nodes are the tails of the chains."""

    kind: Int8
    row: Int32
    """The event; -1 for the end of the window."""
    chain: Int32
    """Lines of host work come first, then the workers, then streams."""
    at_ns: Int64
    """When it happened."""
    duration_ns: Int64
    """Of work; 0 on the host."""
    lines: int
    """Chains that are no streams."""
    tail_ns: Int64
    """Per chain, when what came before the window ended on it; `NEVER` when nothing did."""
    source: Int32
    target: Int32
    """Sorted."""
    arc_kind: Int8
    lag_ns: Int64
    """The work's own duration is not part of it."""
    spans: Spans
    gap_ns: int
    """What usually lies between two pieces of work on a stream."""
    is_one_run: bool

    def __len__(self) -> int:
        """Number of nodes."""
        return len(self.at_ns)

    @cached_property
    def joins(self) -> JoinPlan:
        """What is left of it to re-time one by one, with all arcs as they were recorded."""
        # Re-timing may put work on chains beside its streams'.
        tails = 2 * len(self.tail_ns)
        _, last = last_of_chains(self.chain, tails)
        return plan_joins(self.source, self.target, self.chain, tails, last)


def build_graph(trace: Trace, program: Program, waits: WaitArcs | None = None) -> Graph:
    """The graph of a program's window.

    Args:
        trace: The trace.
        program: The pieces of its window.
        waits: Their waits' arcs, if they are known already.
    """
    work, waits = work_arcs(trace, program), waits or wait_arcs(trace, program)
    nodes = _Nodes(trace, program, waits)
    arcs = [
        nodes.host_arcs(waits),
        *nodes.work_arcs(work),
        nodes.wait_arcs(waits),
        nodes.batch_arcs(),
    ]
    source, target = (
        np.concatenate([part[name] for part in arcs]) for name in ("source", "target")
    )
    # Clocks are rounded: an arc against the order of the record is none.
    order = np.flatnonzero((source < target) | (source >= len(nodes.at_ns))).astype(np.int32)
    order = order[np.argsort(target[order], kind="stable")]
    spans = _spans(arcs, order)
    del source, target
    # One column after the other: there are several millions of arcs in a large profile.
    columns = {
        name: np.concatenate([part.pop(name) for part in arcs])[order] for name in _ARC_COLUMNS
    }
    return Graph(
        kind=nodes.kind,
        row=nodes.row,
        chain=nodes.chain,
        at_ns=nodes.at_ns,
        duration_ns=nodes.duration_ns,
        lines=nodes.lines,
        tail_ns=np.concatenate((np.full(nodes.lines, program.start_ns), program.tail_ns)),
        spans=spans,
        gap_ns=work.gap_ns,
        is_one_run=program.is_one_run,
        **columns,
    )


def _spans(parts: list[_Columns], order: Int32) -> Spans:
    """Those of the arcs that stand for time.

    Args:
        parts: Arcs, of which some have these columns.
        order: Where each arc of the graph is among those of all parts.
    """
    begins = np.cumsum([0, *(len(part["source"]) for part in parts)])
    place = np.full(begins[-1], -1, dtype=np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    found: list[tuple[NDArray[np.signedinteger], ...]] = []
    for begin, part in zip(begins.tolist(), parts, strict=False):
        if "from_ns" in part:
            columns = [part.pop(name) for name in _SPAN_COLUMNS]
            from_ns, to_ns, cost_ns = columns
            arc = place[begin : begin + len(from_ns)]
            chosen = (arc >= 0) & ((to_ns > from_ns) | (cost_ns > 0))
            found.append((arc[chosen], *(column[chosen] for column in columns)))
    arc, *columns = (np.concatenate(some) for some in zip(*found, strict=True))
    by_arc = np.argsort(arc)
    return Spans(arc[by_arc], *(column[by_arc] for column in columns))


class _Nodes:
    """Nodes in order, and where the events' moments are among them."""

    def __init__(self, trace: Trace, program: Program, waits: WaitArcs) -> None:
        events, work, batches = trace.events, program.work, program.batches
        workers = len(program.lines)
        lines = workers + 1
        calls = distinct(program.launch)
        # A blocking copy begins, as any launch, and returns.
        parts: tuple[tuple[int, Int32, Int32, Int64, Int64], ...] = (
            (NodeKind.CALL, calls, program.line_of[events.track[calls]],
             events.start_ns[calls], events.start_ns[calls]),
            (NodeKind.RETURN, waits.row, program.line_of[events.track[waits.row]],
             waits.returns_ns, events.start_ns[waits.row]),
            (NodeKind.WORK, work, (lines + program.stream).astype(np.int32),
             events.end_ns[work], events.start_ns[work]),
            # A batch is made before the fetch that waits for it goes on.
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
        # The window ends after all that its threads did in it.
        for line in range(lines):
            own = chain == line
            at[own & (kind == NodeKind.END)] = at[own].max()
        # At one moment work ends first, then the host goes on, then work without length ends.
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
        self._fetched = place[bounds[4] : bounds[5]]
        self._began = began[order]
        self.lines = lines
        self._program = program

    def _tail(self, chain: Int32) -> Int32:
        return (len(self.at_ns) + chain).astype(np.int32)

    def _source(self, work: Int32, stream: Int32) -> Int32:
        """The node of a position in the window's work, the stream's tail for -1."""
        return np.where(work >= 0, self._work[work], self._tail(self.lines + stream)).astype(
            np.int32
        )

    def host_arcs(self, waits: WaitArcs) -> _Columns:
        """Each thread goes on."""
        host = np.flatnonzero(self.chain < self.lines)
        order = host[np.argsort(self.chain[host], kind="stable")]
        first = np.diff(self.chain[order], prepend=-1) != 0
        source = np.where(first, self._tail(self.chain[order]), np.roll(order, 1))
        at = np.where(first, self._program.start_ns, np.roll(self.at_ns[order], 1))
        cost = np.zeros(len(self.at_ns), dtype=np.int64)
        cost[self._return] = waits.cost_ns
        # A wait's own time is not work: what precedes it ends where the call begins.
        until = np.where(self.kind == NodeKind.RETURN, self._began, self.at_ns)[order]
        until = np.maximum(until, at)
        own_cost = np.minimum(cost[order], self.at_ns[order] - until)
        return _arcs(source, order, ArcKind.HOST, until - at + own_cost, (at, until, own_cost))

    def work_arcs(self, work: WorkArcs) -> tuple[_Columns, ...]:
        """Work follows its launch, its stream and what else it waited for."""
        return (
            _arcs(
                self._call[self._program.launch],
                self._work,
                ArcKind.LAUNCH,
                work.launch_lag_ns,
            ),
            _arcs(
                self._source(work.previous, self._program.stream),
                self._work,
                ArcKind.STREAM,
                work.stream_lag_ns,
            ),
            _arcs(
                self._work[work.cross_source],
                self._work[work.cross_target],
                ArcKind.CROSS,
                work.cross_lag_ns,
            ),
        )

    def wait_arcs(self, waits: WaitArcs) -> _Columns:
        """Waits return after what they wait for."""
        return _arcs(
            self._source(waits.work, waits.stream),
            self._return[waits.wait],
            ArcKind.WAIT,
            waits.lag_ns,
        )

    def batch_arcs(self) -> _Columns:
        """Fetches return when their batch is ready."""
        fetched = self._fetched
        none = np.zeros(len(fetched), dtype=np.int64)
        span = (self._began[fetched], self.at_ns[fetched], none)
        return _arcs(self._batch, fetched, ArcKind.WAIT, none, span)


_Columns = dict[str, NDArray[np.signedinteger]]
_ARC_COLUMNS = {"source": np.int32, "target": np.int32, "arc_kind": np.int8, "lag_ns": np.int64}
_SPAN_COLUMNS = ("from_ns", "to_ns", "cost_ns")


def _arcs(
    source: NDArray[np.signedinteger],
    target: NDArray[np.signedinteger],
    kind: ArcKind,
    lag_ns: Int64,
    span: tuple[Int64, Int64, Int64] | None = None,
) -> _Columns:
    """Arcs of one kind; a span is when it begins and ends, and the call's cost."""
    columns = {"source": source, "target": target, "arc_kind": int(kind), "lag_ns": lag_ns}
    made: _Columns = {
        name: np.broadcast_to(np.asarray(columns[name], dtype=dtype), np.shape(source))
        for name, dtype in _ARC_COLUMNS.items()
    }
    if span is not None:
        made |= zip(_SPAN_COLUMNS, span, strict=True)
    return made
