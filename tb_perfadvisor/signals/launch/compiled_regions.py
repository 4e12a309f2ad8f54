"""Calls of code that torch.compile has compiled.

TorchDynamo records each as `Torch-Compiled Region: FRAME/VERSION` (torch/_dynamo/eval_frame.py and
utils.py; since PyTorch 2.3). Code that is compiled again for other inputs has another version. If a
function cannot be compiled as a whole, its first part calls the rest as a separate frame: a region
within a region is a graph break.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.core.operators import Shape, parse_shapes, shapes_of
from tb_perfadvisor.signals.launch.delays import LONGEST_LAUNCH_GAP_NS
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import distinct, is_in, places_by_value
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, intersect, minus, union
from tb_perfadvisor.trace.tables import Int32

_MANY_PER_STEP = 3
"""One or two breaks, around a loss or a metric, cost as much as a few operators."""


class CompiledRegions(Struct, frozen=True):
    """Calls in the used window, in order of start; shape (n,)."""

    row: Int32
    frame: Int32
    is_resumed: NDArray[np.bool_]
    """Whether it lies in another region: the rest of a function after a graph break."""


class GraphBreaks(Struct, frozen=True):
    """Graph breaks and their cost, if there are many per step."""

    row: Int32
    """The regions after breaks; empty if there are few."""
    idle: Intervals
    """Idle time that ends with their first launches, without what synchronizations induce."""


_REGION = regex(r"Torch-Compiled Region(?:: (?P<frame>\d{1,6})/\d+)?")


@memoized
def compiled_regions(signals: Signals) -> CompiledRegions:
    """The calls of regions that torch.compile has compiled."""
    trace = signals.trace
    events = trace.events
    rows = trace.rows(EventKind.OPERATOR, EventKind.ANNOTATION)
    frames = {}
    if trace.source.framework == "pytorch":
        for name in distinct(events.name[rows]).tolist():
            if found := _REGION.match(trace.strings[name]):
                frames[name] = int(found["frame"] or -1)
    rows = rows[is_in(events.name[rows], list(frames))]
    rows = signals.steps.own(rows)
    is_resumed = np.zeros(len(rows), dtype=np.bool_)
    for _, on_track in places_by_value(events.track[rows]):
        reach = np.maximum.accumulate(events.end_ns[rows[on_track]])
        is_resumed[on_track[1:]] = events.start_ns[rows[on_track]][1:] < reach[:-1]
    frame = np.array([frames[name] for name in events.name[rows].tolist()], dtype=np.int32)
    return CompiledRegions(rows, frame, is_resumed)


@memoized
def graph_breaks(signals: Signals) -> GraphBreaks:
    """Where compiled functions return to Python and continue."""
    regions, window = compiled_regions(signals), signals.attribution
    rows = regions.row[regions.is_resumed]
    if len(rows) < _MANY_PER_STEP * max(signals.steps.count, 1):
        return GraphBreaks(rows[:0], EMPTY)
    trace, gaps = signals.trace, window.idle
    events, launches = trace.events, trace.rows(EventKind.LAUNCH)
    launches = launches[is_in(events.track[launches], distinct(events.track[rows]))]
    # Only the first launch of each region: later launches cost as much without the break.
    at = np.searchsorted(events.start_ns[launches], events.start_ns[rows])
    first = launches[at[at < len(launches)]]
    ended = is_in(gaps.launch_row, first) & ~gaps.is_queued
    ended &= gaps.end_ns - gaps.start_ns <= LONGEST_LAUNCH_GAP_NS
    idle = intersect(signals.host_idle, union(gaps.start_ns[ended], gaps.end_ns[ended]))
    return GraphBreaks(rows, minus(idle, signals.synchronizations.induced))


class ChangingInput(Struct, frozen=True):
    """An input of compiled code that had more than one shape."""

    frame: int
    position: int
    shapes: tuple[Shape, ...]
    """In order of their first call."""


@memoized
def changing_inputs(signals: Signals) -> tuple[ChangingInput, ...]:
    """Inputs of compiled code that change their shape from call to call.

    These are the inputs of a call's first operator; with gradients, it is the compiled function
    itself with all its inputs. Empty if shapes were not recorded, and for older versions of
    PyTorch, whose regions don't name their function.
    """
    regions, trace = compiled_regions(signals), signals.trace
    operators = trace.rows(EventKind.OPERATOR)
    has_shapes = operators[shapes_of(trace, operators) >= 0]
    seen: dict[int, list[tuple[Shape, ...]]] = {}
    events = trace.events
    has_frame = regions.frame >= 0
    for row, frame in zip(
        regions.row[has_frame].tolist(), regions.frame[has_frame].tolist(), strict=True
    ):
        at = int(np.searchsorted(events.start_ns[has_shapes], events.start_ns[row]))
        inputs = has_shapes[at : at + 8]  # rows of other threads may come first
        inputs = inputs[events.track[inputs] == events.track[row]]
        if len(inputs) and events.start_ns[inputs[0]] < events.end_ns[row]:
            text = trace.text(int(shapes_of(trace, inputs[:1])[0]))
            seen.setdefault(frame, []).append(parse_shapes(text))
    return tuple(
        ChangingInput(frame, position, shapes)
        for frame, calls in sorted(seen.items())
        for position, column in enumerate(zip(*calls, strict=False))
        if len(shapes := tuple(dict.fromkeys(column))) > 1
    )
