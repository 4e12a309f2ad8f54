"""Loops in the step's Python code: the same few operators called again and again.

The outermost operators of the step thread form a sequence of names. Where it repeats with some
period, a loop ran: over samples, places of a sequence, parameters or layers. In the backward pass
the autograd nodes of such a loop repeat as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.core.causes import Cause
from tb_perfadvisor.signals.core.operators import operator_self_ns
from tb_perfadvisor.signals.core.placement import has_ancestor
from tb_perfadvisor.signals.core.steps.launched_work import FunctionCalls, calls_by_function
from tb_perfadvisor.signals.host.idle import OVERRIDING, IdleOwner, idle_without
from tb_perfadvisor.signals.host.optimizer_loops import host_updates, optimizer_loop, zeroing_loop
from tb_perfadvisor.signals.launch.delays import stretched_ns
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.intervals import (
    EMPTY,
    Intervals,
    contains,
    intersect,
    join,
    minus,
    total_ns,
    union,
)
from tb_perfadvisor.trace.names import named
from tb_perfadvisor.trace.tables import Int32, Int64

FEWEST_ITERATIONS = 16
"""Fewer calls of the same operators may be written out, or are the blocks of a usual model."""
LONGEST_PERIOD = 512
"""Operators in an iteration: those of a small model."""
LONGEST_GAP_NS = 200_000
"""Between two operators of a loop, Python takes some ten microseconds. In a longer gap, other code
runs."""
DISPATCH_NS = 5_000
"""What one operator costs at most besides computing: dispatch, checks, and allocation of its
output take 1 to 5 microseconds. Own time beyond this counts as computing."""
_SAME_LOOP = 0.05
"""Loops of one step with about equal numbers of iterations are passes of one loop."""
_ACCUMULATES = "AccumulateGrad"
_TAKES_ELEMENT = frozenset(
    f"aten::{name}"
    for name in ("select", "unbind", "slice", "index", "narrow", "split", "chunk", "item")
)
_PRODUCT = regex(r"linear|conv|(?:^|[^a-z])b?(?:add)?b?mm\b|matmul|attention", re.IGNORECASE)
_CELL = regex(r"^aten::\w+_cell$")


class LoopKind(Enum):
    """What a loop runs over, as far as its operators tell."""

    OPTIMIZER = "optimizer"
    """Parameters, in the optimizer's own methods."""
    PARAMETERS = "parameters"
    """Parameters, in other code: as many iterations as the model has parameters."""
    LAYERS = "layers"
    """Layers: each iteration has parameters of its own, and needs the results of the last."""
    SEQUENCE = "sequence"
    """Places of a sequence, in a recurrent cell that needs the result of the place before."""
    ELEMENTS = "elements"
    """Samples, boxes, masks: what one operator could process at once."""
    UNKNOWN = "unknown"


class OperatorLoop(Struct, frozen=True):
    """A loop with its forward and backward pass, over all used steps."""

    kind: LoopKind
    iterations: int
    """Of one execution, the median."""
    rows: Int32
    """Its outermost operators, in order of start."""
    passes: tuple[tuple[int, int], ...]
    """Index into `rows` of the first iteration of each kind of pass, and its number of operators;
    the pass with most time first."""
    calls: int
    """How many operators it calls, with those that they call."""
    spans: Intervals
    """When it runs, without long gaps."""
    dispatch_ns: int
    """The part of that time in which operators do anything but compute, and Python calls the
    next."""


class _Run(Struct, frozen=True):
    """One execution of a pass: `x[first:last]` repeats with a period."""

    first: int
    last: int
    period: int

    @property
    def iterations(self) -> int:
        return (self.last - self.first) // self.period


@memoized
def operator_loops(signals: Signals) -> tuple[OperatorLoop, ...]:
    """The loops of the used steps, the one with most dispatch first."""
    events, rows = signals.trace.events, _outermost(signals)
    step = signals.steps.owner[rows].astype(np.int64)
    runs = [run for run in _runs(events.name[rows], step) if _is_called_in_loop(signals, rows, run)]
    own_rows, own_ns = _own_time(signals, rows)
    loops = [
        _loop(signals, rows, members, kind, own_rows, own_ns)
        for kind, members in _grouped(signals, rows, runs)
    ]
    return tuple(sorted(loops, key=lambda loop: -loop.dispatch_ns))


def _outermost(signals: Signals) -> Int32:
    """The outermost operators of the step thread in the used window, without those of input."""
    trace = signals.trace
    events, operators = trace.events, trace.rows(EventKind.OPERATOR)
    is_around = is_in(events.kind, (EventKind.OPERATOR, EventKind.INPUT_WAIT, EventKind.COMPILE))
    operators = signals.steps.own(operators)
    rows = operators[events.track[operators] == signals.step_track]
    outermost: Int32 = rows[~has_ancestor(events.parent, rows, is_around)]
    return outermost


def _runs(names: Int32, step: Int64) -> list[_Run]:
    """Where the names repeat within a step, for long enough."""
    if not len(names):
        return []
    is_taken = np.zeros(len(names), dtype=np.bool_)
    runs: list[_Run] = []
    for period in _periods(names, step):
        repeats = (names[period:] == names[:-period]) & (step[period:] == step[:-period])
        repeats &= ~is_taken[period:] & ~is_taken[:-period]
        for first, last in _stretches(repeats, (FEWEST_ITERATIONS - 1) * period):
            last += period
            runs.append(_Run(first, last, _shortest_period(names[first:last], period)))
            is_taken[first:last] = True
    return runs


def _periods(names: Int32, step: Int64) -> list[int]:
    """Periods of loops in a typical step; those that explain most operators first."""
    numbers, counts = np.unique(step, return_counts=True)
    typical = numbers[np.argsort(counts, kind="stable")[len(counts) // 2]]
    sample = names[step == typical]
    covered: dict[int, int] = {}
    for period in range(1, min(LONGEST_PERIOD, len(sample) // FEWEST_ITERATIONS) + 1):
        repeats = sample[period:] == sample[:-period]
        stretches = _stretches(repeats, (FEWEST_ITERATIONS - 1) * period)
        if stretches:
            covered[period] = sum(last - first + period for first, last in stretches)
    return sorted(covered, key=lambda period: (-covered[period], period))


def _shortest_period(names: Int32, period: int) -> int:
    """The shortest period of names that repeat with a period: a divisor of it."""
    divisors = (part for part in range(1, period) if period % part == 0)
    return next((part for part in divisors if (names[part:] == names[:-part]).all()), period)


def _stretches(holds: NDArray[np.bool_], least: int) -> list[tuple[int, int]]:
    """The bounds (first, end) of each run of at least `least` true values in a row."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], holds, [False]))))
    first, last = edges[::2], edges[1::2]
    is_long = last - first >= least
    return list(zip(first[is_long].tolist(), last[is_long].tolist(), strict=True))


def _is_called_in_loop(signals: Signals, rows: Int32, run: _Run) -> bool:
    """Whether the program calls the operators in a loop.

    Not if all are parts of the derivative of a few operators, such as that of a recurrent layer.
    """
    events = signals.trace.events
    forward = signals.origins.forward[rows[run.first : run.last]]
    forward = forward[forward >= 0]
    if not len(forward):
        return True
    callers = np.searchsorted(events.start_ns[rows], events.start_ns[forward], side="right")
    return 2 * len(distinct(callers)) > run.iterations


def _grouped(
    signals: Signals, rows: Int32, runs: Sequence[_Run]
) -> Iterator[tuple[LoopKind, list[_Run]]]:
    """The runs of each loop, with its kind."""
    trace, starts = signals.trace, signals.trace.events.start_ns[rows]
    updating = join(optimizer_loop(signals).steps, zeroing_loop(signals).steps)
    in_optimizer = contains(updating, starts)
    optimizing = [run for run in runs if in_optimizer[run.first]]
    if optimizing and host_updates(signals) is None:  # which has a price of its own
        yield LoopKind.OPTIMIZER, optimizing
    by_pattern: dict[tuple[int, ...], list[_Run]] = {}
    for run in runs:
        if not in_optimizer[run.first]:
            by_pattern.setdefault(_pattern(trace, rows, run), []).append(run)
    groups: list[tuple[float, list[_Run]]] = []
    for iterations, same in sorted(
        ((_iterations(same), same) for same in by_pattern.values()), key=lambda group: group[0]
    ):
        if groups and iterations <= (1 + _SAME_LOOP) * groups[-1][0] + 2:
            groups[-1][1].extend(same)
        else:
            groups.append((iterations, list(same)))
    parameters = _parameter_count(trace, rows, signals.steps.count)
    for _, group in groups:
        yield _kind(trace, rows, group, parameters), group


def _pattern(trace: Trace, rows: Int32, run: _Run) -> tuple[int, ...]:
    """The operators of an iteration, wherever in it the run begins."""
    return tuple(sorted(trace.events.name[rows[run.first : run.first + run.period]].tolist()))


def _iterations(runs: Sequence[_Run]) -> float:
    """Iterations of a typical execution."""
    return float(np.median([run.iterations for run in runs]))


def _parameter_count(trace: Trace, rows: Int32, steps: int) -> float:
    """How many gradients a step accumulates."""
    return int(named(trace, rows, re.compile(_ACCUMULATES)).sum()) / max(steps, 1)


def _kind(trace: Trace, rows: Int32, runs: Sequence[_Run], parameters: float) -> LoopKind:
    names, before = set[str](), set[str]()
    for run in {run.period: run for run in runs}.values():
        names |= _names(trace, rows[run.first : run.first + run.period])
        before |= _names(trace, rows[max(run.first - 1, 0) : run.first])
    if any(_ACCUMULATES in name for name in names):
        return LoopKind.LAYERS
    if any(_CELL.match(name) for name in names):
        return LoopKind.SEQUENCE
    iterations = _iterations(runs)
    if parameters and abs(iterations - parameters) <= _SAME_LOOP * parameters:
        return LoopKind.PARAMETERS
    # In the backward pass, layers accumulate gradients. In the forward pass, they multiply with
    # their parameters, and may take elements as well.
    has_backward = any(name.startswith("autograd::") for name in names)
    may_be_layers = any(_PRODUCT.search(name) for name in names)
    if has_backward or before & _TAKES_ELEMENT or (names & _TAKES_ELEMENT and not may_be_layers):
        return LoopKind.ELEMENTS
    return LoopKind.UNKNOWN


def _names(trace: Trace, rows: Int32) -> set[str]:
    return {trace.strings[name] for name in distinct(trace.events.name[rows]).tolist()}


def _own_time(signals: Signals, outermost: Int32) -> tuple[Int32, Int64]:
    """Operators of the thread, and their time without the operators inside."""
    trace, rows = signals.trace, signals.trace.rows(EventKind.OPERATOR)
    if not len(outermost):
        return rows[:0], trace.events.duration_ns[:0]
    rows = rows[trace.events.track[rows] == trace.events.track[outermost[0]]]
    return rows, operator_self_ns(trace, rows, signals.launching_operator)


def _loop(
    signals: Signals,
    rows: Int32,
    runs: Sequence[_Run],
    kind: LoopKind,
    own_rows: Int32,
    own_ns: Int64,
) -> OperatorLoop:
    events = signals.trace.events
    places = distinct(np.concatenate([np.arange(run.first, run.last) for run in runs]))
    members: Int32 = rows[places]
    start, end = events.start_ns[members], events.end_ns[members]
    whole = union(
        np.array([events.start_ns[rows[run.first]] for run in runs]),
        np.array([events.end_ns[rows[run.last - 1]] for run in runs]),
    )
    computing = union(start, end)
    gaps = minus(whole, computing)
    longest_ns = stretched_ns(LONGEST_GAP_NS, signals.trace)
    spans = minus(whole, gaps[gaps[:, 1] - gaps[:, 0] > longest_ns])
    within = contains(spans, events.start_ns[own_rows])
    between_ns = total_ns(minus(spans, computing))
    # In a damaged profile, operators may overlap: their own times then add up to more.
    dispatching_ns = min(
        int(np.minimum(own_ns[within], stretched_ns(DISPATCH_NS, signals.trace)).sum()),
        total_ns(spans) - between_ns,
    )
    passes: dict[tuple[int, ...], list[_Run]] = {}
    for run in runs:
        passes.setdefault(_pattern(signals.trace, rows, run), []).append(run)

    def cost_ns(same: Sequence[_Run]) -> int:
        return sum(
            int(events.end_ns[rows[run.last - 1]] - events.start_ns[rows[run.first]])
            for run in same
        )

    ranked = sorted(passes.values(), key=lambda same: -cost_ns(same))
    return OperatorLoop(
        kind=kind,
        iterations=int(_iterations(runs)),
        rows=members,
        passes=tuple(
            (int(np.searchsorted(places, same[0].first)), same[0].period) for same in ranked
        ),
        calls=int(within.sum()),
        spans=spans,
        dispatch_ns=dispatching_ns + between_ns,
    )


_MANY_PER_STEP: Final = 10
"""A step may call a few functions: for data, gradients, the update and metrics."""
_LONGEST_CALL_NS: Final = 2_000_000
"""A program that runs for longer pays for being called."""
_LONGEST_PYTHON_NS: Final = 5_000_000
"""Python between two calls, on a busy machine; as for eager operators."""
_TWO_CORES: Final = 2
"""One for the calls, and one for the operations."""


class LoopedCalls(Struct, frozen=True):
    """The calls of the used steps, if there are many."""

    functions: tuple[str, ...]
    """Those called in a loop, the one with most calls first."""
    rows: Int32
    idle: Intervals
    """When no operation runs, in these calls and between them."""
    sharing: Intervals
    """When a call prepares the next run on a core that the run before needs."""
    loops: Intervals
    """All of that, and the operations meanwhile."""


_NONE: Final = LoopedCalls((), np.empty(0, dtype=np.int32), EMPTY, EMPTY, EMPTY)


@memoized
def looped_calls(signals: Signals) -> LoopedCalls:
    """Short programs of JAX on the CPU that are called ten times per step or more."""
    trace, count = signals.trace, signals.steps.count
    if trace.source.framework != "jax" or not signals.device.is_host_only or not count:
        return _NONE
    longest_ns = stretched_ns(_LONGEST_CALL_NS, trace)
    found = []
    for calls in calls_by_function(trace):
        if calls.total_ns <= longest_ns * len(calls.rows):
            own = signals.steps.own(calls.rows)
            if len(own) >= _MANY_PER_STEP * count:
                found.append(FunctionCalls(calls.function, own, calls.total_ns))
    if not found:
        return _NONE
    found.sort(key=lambda calls: -len(calls.rows))
    events = trace.events
    rows = np.sort(np.concatenate([calls.rows for calls in found]))
    spans = events.spans(rows)
    gap_ns = stretched_ns(_LONGEST_PYTHON_NS, trace)
    near = union(spans[:, 0] - gap_ns, spans[:, 1] + gap_ns)
    free = idle_without(signals, *OVERRIDING, IdleOwner.HOST_CALLBACK)
    idle = intersect(free, near)
    idle = idle[idle[:, 1] - idle[:, 0] <= gap_ns]
    working = signals.attribution.intervals[Cause.HOST_COMPUTE]
    cores = trace.facts.machine.usable_cores
    sharing = intersect(spans, working) if cores is not None and cores < _TWO_CORES else EMPTY
    loops = join(idle, intersect(working, near))
    return LoopedCalls(tuple(each.function for each in found), rows, idle, sharing, loops)
