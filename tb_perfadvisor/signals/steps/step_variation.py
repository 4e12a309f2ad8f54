"""Steps that differ from one another, by chance or by kind."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.core.causes import COMPUTE, Cause
from tb_perfadvisor.signals.core.steps.server_annotations import server_annotations
from tb_perfadvisor.signals.host.call_tree import SelfTime, self_time
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.work.operator_inputs import parse_inputs
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import is_in
from tb_perfadvisor.trace.intervals import Intervals, intersect, union
from tb_perfadvisor.trace.names import named
from tb_perfadvisor.trace.tables import Int32, Int64

_GROUPS: Mapping[str, tuple[Cause, ...]] = MappingProxyType(
    {"Compute": COMPUTE} | {cause.label: (cause,) for cause in Cause if cause not in COMPUTE}
)
OF_THE_HOST = tuple(
    cause.label
    for cause in (
        Cause.INPUT,
        Cause.BETWEEN_STEPS,
        Cause.COMPILING,
        Cause.ALLOCATING,
        Cause.SYNCHRONIZATION,
        Cause.LAUNCHING,
        Cause.FRAMEWORK,
        Cause.PYTHON,
        Cause.UNEXPLAINED,
    )
)
"""Parts in which the device does nothing: longer ones are lost time, not more work."""
MAD_TO_SIGMA = 1.4826
"""The median absolute deviation of a normal distribution, times this, is its sigma."""
_LEAST_SIGMA = 0.01
"""Share of the median: steps always vary by at least this much."""
_OUTLIER_SIGMAS = 3.5
"""Iglewicz and Hoaglin, "How to Detect and Handle Outliers" (1993): modified z-score."""
_OUTLIER_RATIO = 1.5
_NOISES = 3.0
_LEAST_EXCESS = 0.10
"""Share of the median step: smaller spikes don't matter."""
_FEWEST_SPIKES = 3


class Spikes(Struct, frozen=True):
    """Steps at regular intervals that take longer in one part."""

    part: str
    index: NDArray[np.intp]
    """Indices of the used steps."""
    period: int
    excess_ns: Int64
    """Time of each step above the other steps; shape (index,)."""


class StepVariation(Struct, frozen=True):
    """The used steps compared; columns of shape (steps,)."""

    duration_ns: Int64
    parts: Mapping[str, Int64]
    """Exclusive time by part: the causes, with all precisions of compute as one part."""
    is_comparable: NDArray[np.bool_]
    """False for steps that have other work to do: an inference server's steps that read prompts,
    if most only generate tokens."""
    is_warm_up: NDArray[np.bool_]
    """True for the first step if it is much slower than all others."""
    spikes: Spikes | None
    outliers: NDArray[np.intp]
    """Indices of slow steps that are neither warm-up nor spikes."""

    def grown(self, index: NDArray[np.intp]) -> tuple[str, Int64]:
        """The part that grows most in some steps, compared with the median of the other steps.

        The extra time is that of each of the steps; shape (index,).
        """
        is_other = self.is_comparable.copy()
        is_other[index] = False
        excess = {
            part: values[index] - int(np.median(values[is_other]))
            for part, values in self.parts.items()
        }
        part = max(excess, key=lambda name: int(excess[name].sum()))
        return part, np.maximum(excess[part], 0)


@memoized
def step_variation(signals: Signals) -> StepVariation:
    """Compare the used steps."""
    duration = signals.steps.duration_ns
    by_cause = signals.attribution.step_total_ns
    parts = {
        part: np.sum([by_cause[cause] for cause in causes], axis=0).astype(np.int64)
        for part, causes in _GROUPS.items()
    }
    comparable = _comparable(signals)
    warm_up = np.zeros(len(duration), dtype=bool)
    if comparable[:1].any() and comparable[1:].any():
        later = duration[1:][comparable[1:]]
        warm_up[0] = (
            duration[0] > _OUTLIER_RATIO * float(np.median(later)) and duration[0] > later.max()
        )
    spikes = _spikes(parts, duration) if comparable.all() else None
    outliers = np.flatnonzero(comparable)[_outliers(duration[comparable])]
    outliers = outliers[~warm_up[outliers]]
    if spikes is not None:
        outliers = outliers[~is_in(outliers, spikes.index)]
    return StepVariation(duration, MappingProxyType(parts), comparable, warm_up, spikes, outliers)


def in_steps(signals: Signals, part: str, index: NDArray[np.intp]) -> Intervals:
    """Intervals of a part within some of the used steps."""
    steps = signals.steps
    return intersect(
        signals.attribution.of(*_GROUPS[part]), union(steps.start_ns[index], steps.end_ns[index])
    )


def dominant_event(signals: Signals, claims: Intervals, excess_ns: int) -> tuple[str, SelfTime]:
    """The event that takes most of some extra time on the host.

    The name is empty if no recorded event does. The self time is that of all events on the step's
    thread.
    """
    times = self_time(signals.trace, signals.step_track, claims)
    is_most = bool(times.names) and 2 * times.self_ns[0] >= excess_ns
    return (times.names[0] if is_most else ""), times


def _comparable(signals: Signals) -> NDArray[np.bool_]:
    """The steps of the most frequent kind, if an inference server annotates kinds; else all."""
    annotated, start_ns = server_annotations(signals.trace), signals.steps.host_start_ns
    if not len(annotated):
        return np.ones(len(start_ns), dtype=bool)
    # The profiler's own markers begin a little before the annotations.
    at_ns = signals.trace.events.start_ns[annotated.row]
    step = np.minimum(np.searchsorted(at_ns, start_ns), len(at_ns) - 1)
    kind = annotated.kind[step]
    return kind == np.bincount(kind).argmax() if len(kind) else np.empty(0, dtype=bool)


def _outliers(duration: Int64) -> NDArray[np.intp]:
    """Steps that are beyond 3.5 sigma and take more than 1.5 times the median."""
    if len(duration) == 0:
        return np.empty(0, dtype=np.intp)
    median = float(np.median(duration))
    # Twice the distances are integers, of whose median NumPy imports no masked arrays.
    sigma = MAD_TO_SIGMA * float(np.median(np.abs(2 * duration - int(2 * median)))) / 2
    sigma = max(sigma, _LEAST_SIGMA * median)
    is_far = (duration - median > _OUTLIER_SIGMAS * sigma) & (duration > _OUTLIER_RATIO * median)
    return np.flatnonzero(is_far)


def _spikes(parts: Mapping[str, Int64], duration: Int64) -> Spikes | None:
    """The largest periodic spikes in any part of the host."""
    best: Spikes | None = None
    for part in OF_THE_HOST:
        spikes = _periodic(part, parts[part], duration)
        if spikes is not None and (
            best is None or int(spikes.excess_ns.sum()) > int(best.excess_ns.sum())
        ):
            best = spikes
    return best


def _periodic(part: str, values: Int64, duration: Int64) -> Spikes | None:
    count = len(values)
    if count < 2 * _FEWEST_SPIKES - 1:
        return None
    # Up to half of the steps may be spikes, so the lower half shows what is normal.
    lower = np.sort(values)[: (count + 1) // 2]
    normal = float(np.median(lower))
    noise = float(lower[-1] - lower[0])
    least = max(_LEAST_EXCESS * float(np.median(duration)), _NOISES * noise)
    index = np.flatnonzero(values - normal > least)
    if len(index) < _FEWEST_SPIKES:
        return None
    period = int(index[1] - index[0])
    if period < 2 or (np.diff(index) != period).any():
        return None
    if index[0] >= period or index[-1] + period < count:
        return None  # the pattern does not cover all steps
    is_other = np.ones(count, dtype=bool)
    is_other[index] = False
    excess = values[index] - int(np.median(values[is_other]))
    # The variation of the other steps must be small compared with the smallest spike.
    if 2 * (float(values[is_other].max()) - normal) > float(excess.min()):
        return None
    return Spikes(part, index, period, excess)


_FORWARD = r"^DistributedDataParallel\.forward$"
_UPDATE = r"^Optimizer\.step#"
_GRADIENT = r"^torch::autograd::AccumulateGrad$"


@memoized
def micro_batches(signals: Signals) -> int:
    """Forward passes per optimizer step, if all steps have equally many; else 1."""
    forward = len(_inside(signals, _FORWARD))
    updates = len(_inside(signals, _UPDATE))
    if updates == 0 or forward % updates or updates != signals.steps.count:
        return 1
    return max(forward // updates, 1)


@memoized
def gradient_bytes(signals: Signals) -> int | None:
    """Bytes of the gradients that one backward pass accumulates; None without shapes."""
    trace, table = signals.trace, signals.trace.operators
    rows = _inside(signals, _GRADIENT)
    if len(rows) == 0 or len(table.row) == 0:
        return None
    slot = np.minimum(np.searchsorted(table.row, rows), len(table.row) - 1)
    slot = slot[(table.row[slot] == rows) & (table.shapes[slot] >= 0)]
    if len(slot) < len(rows):
        return None
    pairs = np.stack([table.shapes[slot], table.dtypes[slot]], axis=1)
    kinds, counts = np.unique(pairs, axis=0, return_counts=True)
    total = 0
    for (shapes, dtypes), count in zip(kinds.tolist(), counts.tolist(), strict=True):
        try:
            inputs = parse_inputs(trace.text(shapes), trace.text(dtypes), "")
        except (TypeError, ValueError):
            return None
        total += count * sum(tensor.size_bytes for tensor in inputs.tensors if tensor is not None)
    return total // (signals.steps.count * micro_batches(signals)) or None


def _inside(signals: Signals, pattern: str) -> Int32:
    """Operators and annotations that match a pattern and begin in the used window."""
    trace = signals.trace
    rows = trace.rows(EventKind.ANNOTATION, EventKind.OPERATOR)
    rows = signals.steps.own(rows)
    return rows[named(trace, rows, re.compile(pattern))]
