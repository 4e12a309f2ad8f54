"""Work before, after and between steps.

On a device, the line `XLA Modules` has the runs. On the CPU, JAX records only operations, which
tell the runs. In TensorFlow, a run is a call of a function; on the CPU, it lasts from the first
operator in the call to the last.
"""

from __future__ import annotations

import re

import msgspec
import numpy as np
from msgspec import Struct

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.core.steps.gaps import first_from, is_closing
from tb_perfadvisor.signals.core.steps.launched_work import cpu_runs
from tb_perfadvisor.signals.core.steps.markers import function_calls
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct, places_by_value, without
from tb_perfadvisor.trace.intervals import (
    Intervals,
    intersect,
    join,
    last_before,
    single,
    total_ns,
    union,
)
from tb_perfadvisor.trace.names import named
from tb_perfadvisor.trace.tables import Int32, Int64

# Operators that TensorFlow's summary writers, checkpoints and `evaluate` run, by their names in
# TensorFlow's op registry, and functions of Keras.
_KINDS = (
    ("TensorBoard callback", regex(r"Summary|summary")),
    ("checkpoint", regex(r"SaveV2|SaveSlices|MergeV2Checkpoints|checkpoint", re.IGNORECASE)),
    ("evaluation", regex(r"__inference_(?:multi_step_on_iterator_eval|test_function)")),
)


class AfterStep(Struct, frozen=True):
    """Work of the step's thread after the step."""

    what: str
    """In plain words; a name of the profile if it is of no known kind."""
    time_ns: int


@memoized
def after_step(signals: Signals) -> tuple[AfterStep, ...]:
    """Work of the step's thread after a single step of TensorFlow, the longest kind first."""
    trace, steps, events = signals.trace, signals.steps, signals.trace.events
    if trace.source.framework != "tensorflow" or len(steps) != 1 or steps.track < 0:
        return ()
    end_ns = int(steps.marker_end_ns[0])
    rows = trace.rows(EventKind.ANNOTATION, EventKind.OPERATOR, EventKind.RUNTIME)
    rows = rows[(events.track[rows] == steps.track) & (events.start_ns[rows] >= end_ns)]
    found: dict[str, list[int]] = {}
    for row in rows.tolist():
        name = trace.name(row)
        what = next((label for label, pattern in _KINDS if pattern.search(name)), "")
        if what:
            found.setdefault(what, []).append(row)
    work = []
    for what, members in found.items():
        own = np.array(members, dtype=np.int32)
        time_ns = total_ns(events.spans(own))
        work.append(AfterStep(what, time_ns))
    return tuple(sorted(work, key=lambda entry: -entry.time_ns))


class ProgramRuns(msgspec.Struct, frozen=True):
    """Runs of programs that begin in the used window."""

    start_ns: Int64
    """Ascending; shape (runs,)."""
    end_ns: Int64
    spans: Intervals
    """When any program runs."""
    rows: Int32
    """Events of the runs: device modules or calls of functions; empty if there are none."""

    def __len__(self) -> int:
        """Number of runs."""
        return len(self.start_ns)


@memoized
def program_runs(signals: Signals) -> ProgramRuns:
    """Runs of compiled programs on the device, or on the CPU if the program uses no device."""
    trace, window, events = signals.trace, signals.attribution, signals.trace.events
    if not signals.device.is_host_only:
        modules = trace.rows(EventKind.DEVICE_MODULE)
        rows = modules[trace.tracks.device[events.track[modules]] == signals.device.index]
    elif trace.source.framework == "tensorflow":
        rows = function_calls(trace)
    else:
        rows = np.empty(0, dtype=np.int32)
    start, end = events.start_ns[rows], events.end_ns[rows]
    if signals.device.is_host_only and trace.source.framework == "jax":
        runs = cpu_runs(trace)
        start, end = runs.start_ns, runs.end_ns
    if signals.device.is_host_only and trace.source.framework == "tensorflow":
        start, end = _of_operators(trace, start, end)
    inside = (start >= window.window_start_ns) & (start < window.window_end_ns)
    if len(rows):
        rows = rows[inside]
    start, end = start[inside], end[inside]
    return ProgramRuns(start, end, union(start, end), rows)


def _of_operators(trace: Trace, start: Int64, end: Int64) -> tuple[Int64, Int64]:
    """From the first operator in each call to the last, on any thread; fetches count.

    What surrounds them is the cost of the call: it takes arguments, and hands over results.
    """
    events, rows = trace.events, trace.rows(EventKind.OPERATOR, EventKind.INPUT_WAIT)
    call = last_before(start, events.start_ns[rows])
    inside = call >= 0
    inside[inside] = events.end_ns[rows[inside]] <= end[call[inside]]
    rows, call = rows[inside], call[inside]
    first = np.full(len(start), np.iinfo(np.int64).max)
    last = np.zeros(len(start), dtype=np.int64)
    np.minimum.at(first, call, events.start_ns[rows])
    np.maximum.at(last, call, events.end_ns[rows])
    return np.where(last > 0, first, start), np.where(last > 0, last, end)


_PRODUCT = regex(r"^aten::(_?convolution|conv[123]d|linear|addmm|mm|bmm|baddbmm|matmul)$")


def work_between_steps(signals: Signals) -> Intervals:
    """On a CPU-only capture, the step thread's operators between steps without the forward pass.

    The operators of a callback or a checkpoint are not the step's. In PyTorch, the next forward
    pass may begin before its marker: from the first operator with a backward node on, operators are
    the step's.
    """
    trace, events = signals.trace, signals.trace.events
    gaps = signals.between_steps
    rows = trace.rows(EventKind.OPERATOR)
    rows = rows[events.track[rows] == signals.step_track]
    work = intersect(gaps, events.spans(rows))
    forward = np.sort(events.start_ns[distinct(events.forward[events.forward >= 0])])
    ends = np.minimum(gaps[:, 1], first_from(forward, gaps[:, 0]))
    return intersect(work, union(gaps[:, 0], ends))


def evaluation_between_steps(signals: Signals) -> Intervals:
    """The part of that work that clearly does not belong to the step.

    It lies in annotated ranges, or between the first and the last matrix product or convolution
    without a backward node, as when a model is validated.
    """
    work = work_between_steps(signals)
    if len(work) == 0:
        return work
    trace, events, gaps = signals.trace, signals.trace.events, signals.between_steps
    ranges = trace.rows(EventKind.ANNOTATION)
    ranges = ranges[(events.track[ranges] == signals.step_track) & ~is_closing(trace, ranges)]
    spans = [_inside(gaps, events.start_ns[ranges], events.end_ns[ranges])]
    rows = trace.rows(EventKind.OPERATOR)
    rows = rows[named(trace, rows, _PRODUCT) & (events.track[rows] == signals.step_track)]
    # Operators with a backward node belong to training.
    rows = without(rows, events.forward[events.forward >= 0])
    slot = last_before(gaps[:, 0], events.start_ns[rows])
    inside = (slot >= 0) & (events.end_ns[rows] <= gaps[np.maximum(slot, 0), 1])
    rows = rows[inside]
    for _, places in places_by_value(slot[inside]):
        in_gap = rows[places]
        spans.append(single(int(events.start_ns[in_gap].min()), int(events.end_ns[in_gap].max())))
    return intersect(work, join(*spans))


def _inside(gaps: Intervals, start_ns: Int64, end_ns: Int64) -> Intervals:
    """Events that lie completely inside a gap."""
    slot = last_before(gaps[:, 0], start_ns)
    inside = (slot >= 0) & (end_ns <= gaps[np.maximum(slot, 0), 1])
    return union(start_ns[inside], end_ns[inside])
