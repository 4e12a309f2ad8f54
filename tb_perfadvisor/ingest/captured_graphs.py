"""Joins replays of GPU graphs with recordings of their capture.

A replay launches a whole graph, so its kernels show neither the operators whose work they do nor
their shapes. The operators ran when the graph was captured: at start-up, usually in a recording of
its own (`capture_traces/` of vLLM and SGLang). A graph runs what was captured, so the kernels of
both recordings are the same, one by one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict, replace
from numpy.typing import NDArray

from tb_perfadvisor.ingest.files.tree import first_names
from tb_perfadvisor.ingest.rich_recordings import lines_of
from tb_perfadvisor.note import Note
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.core.operators import launching_operator
from tb_perfadvisor.signals.core.origins import MODULE
from tb_perfadvisor.signals.core.steps.server_annotations import server_annotations
from tb_perfadvisor.signals.work.operator_work import is_product
from tb_perfadvisor.trace import BUSY_KINDS, CapturedTable, EventKind, KernelFamily, Trace
from tb_perfadvisor.trace.integer_groups import distinct, is_in, places_by_value
from tb_perfadvisor.trace.nesting import nearest, with_enclosing
from tb_perfadvisor.trace.tables import Int32, OperatorTable, make_table

_BEGIN = regex(r"(?:cuda|hip|cu)StreamBeginCapture\w*")
_END = regex(r"(?:cuda|hip|cu)StreamEndCapture\w*")
_GRAPH_LAUNCH = regex(r"(?:cuda|hip|cu)GraphLaunch\w*")
_NO_KERNEL = regex(r"Mem(?:cpy|set)|Graph")
_BATCH = regex(r"capture_(\d{1,9})_|(?:^|/)bs_(\d{1,9})[_.]")
"""How many tokens a graph was captured for: vLLM annotates it, SGLang names its files after it."""
_MATRIX = (KernelFamily.MATMUL, KernelFamily.CONVOLUTION, KernelFamily.ATTENTION)
_KERNEL_KINDS = (EventKind.KERNEL, EventKind.COLLECTIVE)
_LEAST_AGREEMENT = 0.9
"""Without names, the share of kernels whose family must be that of their operator."""


class _Graph(Struct, frozen=True):
    """A graph that a recording captures."""

    trace: Trace
    launches: Int32
    """The calls that put kernels into it, in order of time."""
    kernels: tuple[str, ...]
    """Names of their kernels; empty if the runtime does not state them."""
    batch: int | None
    """For how many tokens it was captured."""


class _Replay(Struct, frozen=True):
    """A replay of a graph."""

    rows: Int32
    """Its kernels, in order of start."""
    names: tuple[str, ...]
    tokens: int | None
    """The tokens of the server's step."""


class _Match(Struct, frozen=True):
    graph: _Graph
    rows: Int32
    """Kernels of a replay."""
    operators: Int32
    """The operator in the capture of each; -1 for none."""
    has_shapes: bool
    """Whether the graph is known to be of the replay's batch."""


def joined_with_captures(trace: Trace, captures: Iterable[Trace]) -> Trace:
    """A trace whose replayed kernels know the operators that put them into their graphs.

    The captures are recordings of the same process while it captured graphs. They are read one by
    one, and no more of them than replays need. Returns the trace itself if no graph of these, or of
    its own, fits a replay.
    """
    replays = list(_replays(trace))
    # Most replays run the same kernels, so that fitting them once is enough.
    examples = {replay.names: replay for replay in replays}
    fitting: dict[tuple[str, ...], list[_Graph]] = {names: [] for names in examples}
    wanted = {(replay.names, replay.tokens) for replay in replays}
    recordings = chain((trace,), captures)
    for recording in recordings if replays else ():
        for graph in _graphs(recording):
            for names, replay in examples.items():
                if _fits(trace, replay, graph):
                    fitting[names].append(graph)
        if all(_has_batch(fitting[names], tokens) for names, tokens in wanted):
            break
    last: dict[tuple[int, int | None], int] = {}
    matches = [
        _match(replay, *_choose(replay, fitting[replay.names], last))
        for replay in replays
        if fitting[replay.names]
    ]
    return _with_operators(trace, matches, len(replays)) if matches else trace


def _has_batch(graphs: Iterable[_Graph], tokens: int | None) -> bool:
    """Whether a graph was captured for just this number of tokens."""
    return tokens is not None and any(graph.batch == tokens for graph in graphs)


# --- replays and graphs -----------------------------------------------------------------------


def _replays(trace: Trace) -> Iterator[_Replay]:
    """The replays whose kernels the recording names one by one, in order of time."""
    events = trace.events
    rows = trace.rows(*BUSY_KINDS)
    rows = rows[(events.launched_by[rows] >= 0) & is_in(events.kind[rows], _KERNEL_KINDS)]
    launches = trace.rows(EventKind.LAUNCH)
    names = [n for n in distinct(events.name[launches]).tolist() if _is(trace, n, _GRAPH_LAUNCH)]
    launches = launches[is_in(events.name[launches], names)]
    rows = rows[is_in(events.launched_by[rows], launches)]
    steps = server_annotations(trace)
    tokens = np.maximum(steps.captured_requests, steps.decode_tokens + steps.prefill_tokens)
    for launch, places in places_by_value(events.launched_by[rows]):
        step = np.searchsorted(events.start_ns[steps.row], events.start_ns[launch], "right") - 1
        number = int(tokens[step]) if step >= 0 else -1
        kernels = rows[places]
        yield _Replay(kernels, trace.texts(events.name[kernels]), number if number > 0 else None)


def _graphs(trace: Trace) -> Iterator[_Graph]:
    """The graphs that a recording captures, in order of time."""
    events = trace.events
    calls = trace.rows(EventKind.RUNTIME, EventKind.LAUNCH, EventKind.SYNCHRONIZE)
    of_name = {
        name: (_is(trace, name, _BEGIN), _is(trace, name, _END))
        for name in distinct(events.name[calls]).tolist()
    }
    bounds = [row for row in calls.tolist() if any(of_name[int(events.name[row])])]
    kernel_of = trace.by_event(trace.launches.row, trace.launches.kernel, -1)
    launches = trace.rows(EventKind.LAUNCH)
    for begin, end in pairwise(sorted(bounds, key=lambda row: (events.track[row], row))):
        is_capture = of_name[int(events.name[begin])][0] and of_name[int(events.name[end])][1]
        if not is_capture or events.track[begin] != events.track[end]:
            continue
        inside = launches[(launches > begin) & (launches < end)]
        inside = inside[events.track[inside] == events.track[begin]]
        inside = inside[[not _is(trace, n, _NO_KERNEL) for n in events.name[inside].tolist()]]
        names = trace.texts(kernel_of[inside])
        if len(inside):
            yield _Graph(trace, inside, names if all(names) else (), _batch_of(trace, begin))


def _is(trace: Trace, name: int, pattern: re.Pattern[str]) -> bool:
    return pattern.search(trace.strings[name]) is not None


def _batch_of(trace: Trace, row: int) -> int | None:
    """The batch that an annotation around a capture states, or the file's name."""
    texts = [trace.source.path]
    while row >= 0:
        texts.insert(-1, trace.name(row))
        row = int(trace.events.parent[row])
    found = (_BATCH.search(text) for text in texts)
    return next((int(match[1] or match[2]) for match in found if match is not None), None)


# --- matching ---------------------------------------------------------------------------------


def _fits(trace: Trace, replay: _Replay, graph: _Graph) -> bool:
    """Whether a replay runs the kernels of a graph."""
    if graph.kernels:
        return Counter(graph.kernels) == Counter(replay.names)
    if len(graph.launches) != len(replay.rows):
        return False
    operators = launching_operator(graph.trace)[graph.launches]
    family = trace.by_event(trace.kernels.row, trace.kernels.family, KernelFamily.OTHER)
    is_matrix = is_in(family[replay.rows], _MATRIX)
    names = graph.trace.texts(np.where(operators >= 0, graph.trace.events.name[operators], -1))
    expected = np.array([is_product(name) for name in names])
    # Only PyTorch's own operators have known kernels.
    agrees = (is_matrix == expected)[[name.startswith("aten::") for name in names]]
    return bool(agrees.size and agrees.mean() >= _LEAST_AGREEMENT)


def _choose(
    replay: _Replay, fitting: Sequence[_Graph], last: dict[tuple[int, int | None], int]
) -> tuple[_Graph, bool]:
    """The graph that a replay most likely runs, and whether its shapes are the replay's.

    Graphs of equal layers have equal kernels; they run in the order in which they were captured.

    `fitting` has the graphs with the same kernels, at least one, in order of time. `last` is
    changed: it has the call with which the graph begins that ran last, by recording and batch.
    """
    sizes = sorted({graph.batch for graph in fitting if graph.batch is not None})
    batch = next(
        (size for size in sizes if replay.tokens is not None and size >= replay.tokens), None
    )
    chosen = [graph for graph in fitting if graph.batch == batch] if batch is not None else fitting
    has_shapes = batch is not None or len({_shapes_in(graph) for graph in chosen}) == 1
    key = id(chosen[0].trace), chosen[0].batch
    chosen = [graph for graph in chosen if (id(graph.trace), graph.batch) == key]
    after = [graph for graph in chosen if graph.launches[0] > last.get(key, -1)]
    graph = (after or chosen)[0]
    last[key] = int(graph.launches[0])
    return graph, has_shapes


def _shapes_in(graph: _Graph) -> tuple[str, ...]:
    trace = graph.trace
    operators = launching_operator(trace)[graph.launches]
    shapes = trace.by_event(trace.operators.row, trace.operators.shapes, -1)
    return trace.texts(np.where(operators >= 0, shapes[operators], -1))


def _match(replay: _Replay, graph: _Graph, has_shapes: bool) -> _Match:
    """Each kernel of a replay with its operator: of equal kernels, the first with the first."""
    operators = launching_operator(graph.trace)[graph.launches]
    if not graph.kernels:
        return _Match(graph, replay.rows, operators, has_shapes)
    captured, replayed = np.array(graph.kernels), np.array(replay.names)
    order = np.empty(len(replayed), dtype=np.int64)
    order[np.argsort(replayed, kind="stable")] = np.argsort(captured, kind="stable")
    return _Match(graph, replay.rows, operators[order], has_shapes)


# --- the joined trace -------------------------------------------------------------------------


def _with_operators(trace: Trace, matches: Sequence[_Match], replays: int) -> Trace:
    grafts = _Grafts(trace)
    pairs = [(match.rows, grafts.rows_of(match)) for match in matches]
    rows = np.concatenate([rows for rows, _ in pairs])
    operators = np.concatenate([operators for _, operators in pairs])
    order = np.argsort(rows)
    order = order[operators[order] >= 0]
    table = make_table(CapturedTable, {"row": rows[order], "operator": operators[order]})
    paths = {match.graph.trace.source.path for match in matches} - {trace.source.path}
    origin = f": {first_names(sorted(paths))}" if paths else ""
    note = Note(
        "joined-graphs",
        "info",
        f"The operators of {len(order):,} kernels in {len(matches):,} of {replays:,} replays of GPU"
        f" graphs come from the recording of the capture{origin}.",
    )
    return replace(grafts.joined(), captured=table, notes=(*trace.notes, note))


class _Grafts:
    """Adds operators of other recordings to a trace, as events that take no time."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._strings = {text: index for index, text in enumerate(trace.strings)}
        self._events: list[dict[str, NDArray[np.integer]]] = []
        self._operators: list[dict[str, NDArray[np.integer]]] = []
        self._count = len(trace.events)
        self._row_of: dict[tuple[int, bool], Int32] = {}

    def rows_of(self, match: _Match) -> Int32:
        """The operators of a match as rows of the joined trace; -1 stays."""
        if match.graph.trace is self._trace:
            return match.operators
        key = id(match.graph), match.has_shapes
        if key not in self._row_of:
            self._row_of[key] = self._add(match)
        return self._row_of[key][match.operators]

    def _add(self, match: _Match) -> Int32:
        """Add the operators of a graph and what lies around them; the new row of each event."""
        trace, ours = match.graph.trace, self._trace
        events, table = trace.events, trace.operators
        around = with_enclosing(events.parent, distinct(match.operators[match.operators >= 0]))
        is_module = np.array([text.startswith(MODULE) for text in trace.strings])[events.name]
        is_operator = events.kind == EventKind.OPERATOR
        rows = np.flatnonzero(around & (is_operator | is_module)).astype(np.int32)
        row_of = np.full(len(events) + 1, -1, dtype=np.int32)
        row_of[rows] = np.arange(self._count, self._count + len(rows), dtype=np.int32)
        is_kept = row_of[:-1] >= 0
        parent = events.parent[rows]
        above = np.where(parent >= 0, nearest(events.parent, is_kept)[parent], -1)
        kinds = np.where(is_operator[rows], EventKind.CAPTURED_OPERATOR, EventKind.CAPTURED_RANGE)
        track = ours.events.track[ours.events.launched_by[match.rows[0]]]
        nowhere = np.full(len(rows), -1, dtype=np.int32)
        self._events.append(
            {
                "start_ns": np.full(len(rows), ours.duration_ns),
                "duration_ns": np.zeros(len(rows), dtype=np.int64),
                "kind": kinds,
                "name": self._moved(trace, events.name[rows]),
                "track": np.full(len(rows), track),
                "parent": row_of[above],
                **dict.fromkeys(("step", "launched_by", "forward"), nowhere),
            }
        )
        operators = rows[is_operator[rows]]
        attributes = {
            name: trace.by_event(table.row, getattr(table, name), -1)[operators]
            for name in ("dtypes", "module", *(("shapes", "values") if match.has_shapes else ()))
        }
        lines = [self._index(line) for line in lines_of(trace, operators)]
        self._operators.append(
            {
                **dict.fromkeys(OperatorTable.__struct_fields__, np.full(len(operators), -1)),
                **{name: self._moved(trace, column) for name, column in attributes.items()},
                "frame": np.array(lines, dtype=np.int32),
                "row": row_of[operators],
            }
        )
        self._count += len(rows)
        return row_of

    def _index(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings)) if text else -1

    def _moved(self, trace: Trace, column: Int32) -> Int32:
        """Indices of another trace's strings as those of the joined trace."""
        moved = np.full(len(trace.strings) + 1, -1, dtype=np.int32)
        for index in distinct(column[column >= 0]).tolist():
            moved[index] = self._index(trace.strings[index])
        return moved[column]

    def joined(self) -> Trace:
        """The trace with what was added."""
        trace = self._trace
        if not self._events:
            return trace

        def extended(table: Any, parts: Sequence[dict[str, NDArray[np.integer]]]) -> Any:
            columns = {
                name: np.concatenate([column, *(part[name] for part in parts)])
                for name, column in asdict(table).items()
            }
            return make_table(type(table), columns)

        return replace(
            trace,
            strings=tuple(self._strings),
            events=extended(trace.events, self._events),
            operators=extended(trace.operators, self._operators),
        )
