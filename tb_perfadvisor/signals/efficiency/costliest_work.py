"""Where the time goes, by name, and how far that work is from what it needs.

The time of each cause belongs to what runs in it: compute, exposed communication and exposed copies
to the operators that launched them, idle time to the innermost call of the thread that runs the
steps. What runs at the same time shares it in proportion to its durations, so the shares are those
of the causes. The same work is also given to the modules of the program.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.core.causes import BUSY, COMPUTE, Cause
from tb_perfadvisor.signals.device.device_work import (
    Paths,
    module_paths,
    operators_of,
    work_rows,
)
from tb_perfadvisor.signals.host.busy_functions import busiest_for
from tb_perfadvisor.signals.host.call_tree import (
    host_operators,
    operator_kind,
    place_of,
    self_time,
)
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.program.excess_work import excess_work
from tb_perfadvisor.signals.program.graph import operation_needs, unpriced_operations
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.work.roofline import BOUNDS, LATENCY_BOUND, roofline
from tb_perfadvisor.trace import CopyDirection, EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct, group_rows, is_in, unique_inverse
from tb_perfadvisor.trace.intervals import intersect, minus, total_ns, union
from tb_perfadvisor.trace.names import short_annotation, short_name, without_number
from tb_perfadvisor.trace.tables import Float64, Int32, Int64

NAMED_SHARE = 0.5
"""Name what takes at least half of the time."""
MAX_NAMED = 10
"""More lines are no summary."""
_LEAST_SHARE = 0.02
"""Of the time; less is not worth a line."""
KNOWN_SHARE = 0.8
"""Of a name's time must be in work whose limits are known."""

_WRAPPER = regex(
    r"Compiled ?(?:Region|Function|FxGraph)|^(?:torch::)?autograd::|[Cc]uda_?[Gg]raph"
    r"|^record_param_comms$"
)
"""Operators that run whatever was compiled or captured: what they launch tells more."""
_FILLS = len(CopyDirection)
"""Beside the directions of copies."""
_COPIES = {
    _FILLS: "fills",
    CopyDirection.HOST_TO_DEVICE: "copies to the device",
    CopyDirection.DEVICE_TO_HOST: "copies to the host",
    CopyDirection.DEVICE_TO_DEVICE: "copies within the device",
    CopyDirection.PEER_TO_PEER: "copies between devices",
    CopyDirection.HOST_TO_HOST: "copies within the host",
}


class CostlyWork(Struct, frozen=True):
    """All work of one name in the used window."""

    name: str
    """An operator, an operation of XLA, a kernel without either, a call on the host, or the cause
    of time in which none was recorded; in short."""
    is_idle: bool
    """Whether nothing runs on the device meanwhile, or no operator; false if there is neither."""
    place: str
    """Source line, module or annotation of its longest execution, or of idle time the line where
    `run` saw the program most; empty if unknown."""
    count: int
    time_ns: int
    """Of the used window."""
    achieved_share: float | None
    """What its work needs of its time, at rates that large, well-shaped kernels reach. Above 1 if
    caches or clever algorithms help; None if unknown, and for work too short to have a rate."""
    bound: str
    """What bounds most of it: compute, memory or latency; empty if unknown."""
    rows: Int32
    """Its executions; none of sums."""


class _Names(Struct, frozen=True):
    """The names of some executions."""

    index: Int32
    """Index into `texts`; shape (n,)."""
    texts: tuple[str, ...]


@memoized
def costliest_work(signals: Signals) -> tuple[CostlyWork, ...]:
    """What takes half of the used window, the costliest first, at most `MAX_NAMED`.

    The costliest work is always among it, and what the host does most while nothing runs.
    """
    window_ns = signals.attribution.window_ns
    if not window_ns:
        return ()
    working = [work for work in _working(signals) if work.time_ns]
    found = [*working, *(work for work in _idle(signals) if work.time_ns)]
    found.sort(key=lambda work: (-work.time_ns, work.name))
    least_ns = _LEAST_SHARE * window_ns
    named: list[CostlyWork] = []
    covered_ns = 0
    for work in found:
        is_first = all(work.is_idle != other.is_idle for other in named)
        is_needed = covered_ns < NAMED_SHARE * window_ns and len(named) < MAX_NAMED
        is_large = work.time_ns >= least_ns
        if (is_large and (is_needed or is_first)) or (is_first and not work.is_idle):
            named.append(work)
            covered_ns += work.time_ns
    placed = _with_sampled_places(signals, named)
    return tuple(work if working else replace(work, is_idle=False) for work in placed)


def _with_sampled_places(signals: Signals, named: list[CostlyWork]) -> Iterator[CostlyWork]:
    """Give idle time that no call explains the function in which `run` saw the program."""
    for work in named:
        is_nameless = work.is_idle and not len(work.rows) and not work.place
        function = busiest_for(signals, work.time_ns) if is_nameless else None
        if function is None:
            yield work
        else:
            line = function.lines[0]
            yield replace(work, place=f"{line.path}:{line.line} {line.function}".strip())


def _working(signals: Signals) -> list[CostlyWork]:
    """What runs on the device; without its events, the operators on the host."""
    attribution, trace = signals.attribution, signals.trace
    if trace.totals is not None:
        busy_ns = sum(attribution.total_ns(cause) for cause in BUSY)
        all_ns = max(sum(kernel.total_ns for kernel in signals.kernels), busy_ns, 1)
        sums = [
            _without_rows(
                short_name(kernel.name), False, kernel.count, kernel.total_ns * busy_ns // all_ns
            )
            for kernel in signals.kernels
        ]
        return sums or _by_cause(signals, *BUSY)
    if signals.device.index is None:
        operators = host_operators(signals)
        working_ns = attribution.total_ns(Cause.HOST_COMPUTE)
        line = _source_lines(trace, operators.rows)
        first, group = group_rows(operators.name, line)
        texts = (short_name(operators.names[kind]) for kind in operators.name[first].tolist())
        names = _Names(group.astype(np.int32), tuple(texts))
        found = _by_name(signals, operators.rows, operators.self_ns, names, working_ns)
        others = (Cause.COMMUNICATION, Cause.COPIES)
        return [*found, *_by_cause(signals, *([] if found else [Cause.HOST_COMPUTE]), *others)]
    rows, events = work_rows(signals), trace.events
    duration_ns = np.minimum(events.end_ns[rows], attribution.window_end_ns)
    duration_ns = duration_ns - np.maximum(events.start_ns[rows], attribution.window_start_ns)
    found = []
    for chosen, own_ns, causes in _device_work(trace, rows, duration_ns):
        working_ns = sum(attribution.total_ns(cause) for cause in causes)
        found += _by_name(signals, chosen, own_ns, _names(signals, chosen), working_ns)
    return found


_Work = tuple[Int32, Int64, tuple[Cause, ...]]
"""What runs, its own times, and the causes of the time that it shares."""


def _device_work(trace: Trace, rows: Int32, duration_ns: Int64) -> list[_Work]:
    events = trace.events
    own_ns = np.zeros(len(events), dtype=np.int64)
    own_ns[rows] = duration_ns
    inner = events.parent[rows] >= 0
    # What runs in a loop is not the loop's own.
    np.subtract.at(own_ns, events.parent[rows][inner], duration_ns[inner])
    duration_ns = np.maximum(own_ns[rows], 0)
    kind = events.kind[rows]
    is_copy = is_in(kind, (EventKind.COPY, EventKind.MEMSET))
    is_collective = kind == EventKind.COLLECTIVE
    parts = (
        (~is_copy & ~is_collective, COMPUTE),
        (is_collective, (Cause.COMMUNICATION,)),
        (is_copy, (Cause.COPIES,)),
    )
    return [(rows[chosen], duration_ns[chosen], causes) for chosen, causes in parts]


class ModuleTimes(Struct, frozen=True):
    """What the work of each module takes, without that of the modules inside it."""

    paths: tuple[tuple[str, ...], ...]
    """Names of modules, the outermost first; empty for work outside of all that are known."""
    step_ns: Int64
    """Shape (paths, used steps), or (paths, 1) without steps. All modules together take no more
    than the step."""


@memoized
def module_times(signals: Signals) -> ModuleTimes | None:
    """The time of each module in the used steps; None if no module or named range is known."""
    attribution, steps = signals.attribution, signals.steps
    if signals.trace.totals is not None:
        return None
    work: list[_Work]
    if signals.device.is_host_only:
        operators = host_operators(signals)
        work = [(operators.rows, operators.self_ns, (Cause.HOST_COMPUTE,))]
    else:
        # A step owns what it launched, whenever the device runs it.
        owned = steps.own(signals.device.rows)
        work = _device_work(signals.trace, owned, signals.trace.events.duration_ns[owned])
    paths = Paths()
    modules = [module_paths(signals, rows, paths) for rows, _, _ in work]
    step_ns = np.zeros((len(paths.parent) + 1, steps.count))
    for (rows, own_ns, causes), module in zip(work, modules, strict=True):
        spent = np.zeros_like(step_ns)
        # Place -1 is the last one: work outside of modules.
        np.add.at(spent, (module, steps.owner[rows]), own_ns)
        shared_ns = sum(
            attribution.step_total_ns[cause] if len(steps) else attribution.total_ns(cause)
            for cause in causes
        )
        step_ns += spent * (shared_ns / np.maximum(spent.sum(axis=0), 1))
    merged: dict[tuple[str, ...], Int64] = {}
    for path, times in zip((*range(len(paths.parent)), -1), step_ns.astype(np.int64), strict=True):
        if times.any():
            names = tuple(short_annotation(name) for name in paths.parts(path))
            merged[names] = merged.get(names, 0) + times
    if not any(merged):
        return None
    return ModuleTimes(tuple(merged), np.stack(list(merged.values())))


def _names(signals: Signals, rows: Int32) -> _Names:
    """Device events by the operators that they do the work of, or else by their own names.

    Operations of XLA with one opcode and one source line are together: their numbers say nothing.
    """
    trace = signals.trace
    names, operator = trace.events.name, operators_of(signals, rows)
    called = distinct(names[operator[operator >= 0]])
    texts = trace.texts(called)
    wrappers = called[[_WRAPPER.search(text) is not None for text in texts]]
    is_operator = (operator >= 0) & ~is_in(names[operator], wrappers)
    name = np.where(is_operator, names[operator], names[rows])
    is_xla = trace.operations(rows) >= 0
    line = _source_lines(trace, rows)
    copies = trace.copies
    direction = trace.by_event(copies.row, copies.direction, CopyDirection.UNKNOWN)[rows]
    direction[is_operator | is_xla] = CopyDirection.UNKNOWN
    direction[trace.events.kind[rows] == EventKind.MEMSET] = _FILLS
    # Each format has its own names of copies.
    name[direction != CopyDirection.UNKNOWN] = -1
    first, group = group_rows(name, is_xla, is_operator, line, direction)
    index_of: dict[tuple[str, int], int] = {}
    code = []
    for row in first.tolist():
        text = _COPIES.get(int(direction[row])) or trace.strings[name[row]]
        if is_xla[row]:
            text = without_number(text)
        elif is_operator[row]:
            text = operator_kind(text)
        code.append(index_of.setdefault((short_name(text), int(line[row])), len(index_of)))
    return _Names(np.array(code, dtype=np.int32)[group], tuple(text for text, _ in index_of))


def _source_lines(trace: Trace, rows: Int32) -> Int32:
    """The source line of the operation of XLA that each execution runs; -1 if unknown."""
    lines = np.append(trace.hlo.source_line, np.int32(-1))  # the last one for none
    found: Int32 = lines[trace.operations(rows)]
    return found


def _idle(signals: Signals) -> list[CostlyWork]:
    """What the thread of the steps does while nothing runs, or else why nothing does."""
    attribution, trace = signals.attribution, signals.trace
    waiting = attribution.intervals[Cause.INPUT]
    gaps = attribution.idle
    idle = minus(union(gaps.start_ns, gaps.end_ns), waiting)
    calls = self_time(trace, signals.step_track, idle)
    events = trace.events
    called = intersect(idle, events.spans(calls.rows))
    unique, inverse = unique_inverse(events.name[calls.rows])
    names = _Names(
        inverse.astype(np.int32), tuple(short_name(text) for text in trace.texts(unique))
    )
    found = _by_name(signals, calls.rows, calls.row_self_ns, names, total_ns(called), is_idle=True)
    for cause in Cause:
        if cause not in (*BUSY, Cause.HOST_COMPUTE):
            spans = minus(attribution.intervals[cause], called)
            # Whether the device worked is unknown of what was not recorded.
            is_idle = cause is not Cause.NOT_RECORDED
            is_all = total_ns(spans) == attribution.total_ns(cause)
            name = cause.label if is_all else f"{cause.label} outside of calls"
            found.append(_without_rows(name, is_idle, len(spans), total_ns(spans)))
    return found


def _by_cause(signals: Signals, *causes: Cause) -> list[CostlyWork]:
    """The time of causes in which no work has a name."""
    times = ((cause, signals.attribution.intervals[cause]) for cause in causes)
    return [
        _without_rows(cause.label, False, len(spans), total_ns(spans))
        for cause, spans in times
        if len(spans)
    ]


def _without_rows(name: str, is_idle: bool, count: int, time_ns: int) -> CostlyWork:
    return CostlyWork(name, is_idle, "", count, time_ns, None, "", np.empty(0, dtype=np.int32))


def _by_name(
    signals: Signals,
    rows: Int32,
    duration_ns: Int64,
    names: _Names,
    time_ns: int,
    *,
    is_idle: bool = False,
) -> list[CostlyWork]:
    """Executions by name, which together have `time_ns` of the used window.

    `rows` and `duration_ns` have shape (n,).
    """
    all_ns = int(duration_ns.sum())
    if not all_ns:
        return []
    total_ns = np.bincount(names.index, weights=duration_ns)
    count = np.bincount(names.index)
    found = []
    order = np.lexsort((np.array(names.texts[: len(total_ns)]), -total_ns))
    for place in order[:MAX_NAMED].tolist():
        own = np.flatnonzero(names.index == place)
        longest = int(rows[own[np.argmax(duration_ns[own])]])
        has_limits = not is_idle and signals.device.index is not None
        achieved, bound = _limits(signals, rows[own]) if has_limits else (None, "")
        found.append(
            CostlyWork(
                name=names.texts[place],
                is_idle=is_idle,
                place=_place(signals, longest, names.texts[place]),
                count=int(count[place]),
                time_ns=round(time_ns * float(total_ns[place]) / all_ns),
                achieved_share=achieved,
                bound=bound,
                rows=rows[own],
            )
        )
    return found


def _place(signals: Signals, row: int, name: str) -> str:
    """Where an execution comes from, in short; empty if that says no more than its name."""
    place = short_name(short_annotation(place_of(signals, row) or ""))
    return "" if place == name or "::" in place else place


def _limits(signals: Signals, rows: Int32) -> tuple[float | None, str]:
    """What some executions need of their time, and what bounds most of it."""
    found, durations = roofline(signals), signals.trace.events.duration_ns
    entry = np.searchsorted(found.rows, rows)
    is_known = ~np.isnan(found.achievable_ns[entry])
    is_known &= ~is_in(signals.trace.operations(rows), list(unpriced_operations(signals)))
    known, arithmetic_ns = entry[is_known], _arithmetic_ns(signals, rows[is_known])
    known_ns = durations[found.rows[known]]
    if not known_ns.sum() or known_ns.sum() < KNOWN_SHARE * durations[rows].sum():
        return None, ""
    bound = max(BOUNDS, key=lambda code: int(known_ns[found.bound[known] == code].sum()))
    if bound == LATENCY_BOUND:
        return None, BOUNDS[bound]
    needed_ns = np.maximum(found.achievable_ns[known], np.minimum(arithmetic_ns, known_ns))
    # Of work in excess, the results need less.
    needed_ns = np.minimum(needed_ns, _useful_ns(signals, rows[is_known]))
    return float(needed_ns.sum() / known_ns.sum()), BOUNDS[bound]


def _useful_ns(signals: Signals, rows: Int32) -> Float64:
    """What the results need of the time of executions; infinite if there is no excess."""
    shares = {
        operation.op: part.needed_ns / part.time_ns
        for part in excess_work(signals)
        for operation in part.operations
    }
    share = _by_operation(signals, rows, shares, np.inf)
    return share * np.maximum(signals.trace.events.duration_ns[rows], 1)


def _arithmetic_ns(signals: Signals, rows: Int32) -> Float64:
    """What the operations of XLA need for all that they compute, also on single elements."""
    needs = {one.operation.op: one.needed_ns for one in operation_needs(signals)}
    return _by_operation(signals, rows, needs, 0.0)


def _by_operation(
    signals: Signals, rows: Int32, values: dict[int, float], default: float
) -> Float64:
    """The value of the operation of XLA that each execution runs."""
    of_operation = np.full(len(signals.trace.hlo.name) + 1, default)  # the last one for none
    of_operation[list(values)] = list(values.values())
    found: Float64 = of_operation[signals.trace.operations(rows)]
    return found
