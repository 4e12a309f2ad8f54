"""What the timers of the whole run say: waits for input, late ranks, reduced clocks.

Rows of a few steps vary by chance, so that the run is looked at in at most 60 parts. A part is
affected as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.machine.facts import HEAT, POWER_CAP, RunTimers
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace.tables import Float64, Int64

Mask = NDArray[np.bool_]

_MOST_PARTS = 60
_LATE_SHARE = 0.02
"""Ranks never begin their gradients at exactly the same time."""
_SAME_RANK = 0.8
"""Ranks that take turns being late are not late."""
_SAME_STEPS = 0.2
"""Ranks that wait for each other take equally long for a step."""
_CLEAR = 0.25
_REDUCED = 0.5
"""Clocks are reduced in a part if most looks at the GPU say so."""
_FREE = 0.1
_SLOWER = 0.03
"""Steps vary by less for other reasons."""


class RunParts(Struct, frozen=True):
    """The parts of a run on one rank; columns of shape (parts,), NaN where unknown."""

    rank: int
    first_step: Int64
    """Steps of the run before the part."""
    end_step: Int64
    """Steps of the run up to its end."""
    steps: Int64
    """How many of them were timed."""
    step_ns: Float64
    input_ns: Float64
    ready_ns: Float64
    """From the beginning of a step to its last backward pass."""
    clock_hz: Float64
    temperature_c: Float64
    power_w: Float64
    heat: Float64
    """The share of looks at the GPU at which cooling or supply reduced its clocks."""
    power_cap: Float64
    """The share of looks at which the limit of power did."""
    heat_reason: str = ""
    """The most frequent one; empty without any."""
    max_clock_hz: float | None = None
    device: str = ""

    @property
    def run_ns(self) -> float:
        """The time of all timed steps."""
        return float((self.steps * self.step_ns).sum())

    @property
    def input_share(self) -> float:
        """The part of that time spent waiting for loaders that the recorder timed."""
        return float(np.nansum(self.steps * self.input_ns)) / self.run_ns if self.run_ns else 0.0


class RunCost(Struct, frozen=True):
    """What something costs in the affected parts of a run."""

    parts: RunParts
    affected: Mask
    cost_ns: Float64
    """Per step, by part."""

    @property
    def total_ns(self) -> float:
        """Over the run."""
        return float((self.cost_ns * self.parts.steps)[self.affected].sum())

    @property
    def run_share(self) -> float:
        """Of the time of all timed steps."""
        return self.total_ns / self.parts.run_ns if self.parts.run_ns else 0.0

    @property
    def share(self) -> float:
        """Of the affected steps."""
        return self.total_ns / float((self.parts.step_ns * self.parts.steps)[self.affected].sum())

    @property
    def mean_ns(self) -> float:
        """Per affected step."""
        return self.total_ns / float(self.parts.steps[self.affected].sum())

    @property
    def mean_step_ns(self) -> float:
        """Of the affected steps."""
        return float(np.average(self.parts.step_ns[self.affected], weights=self.weights))

    @property
    def weights(self) -> Int64:
        """Timed steps of the affected parts."""
        return self.parts.steps[self.affected]

    @property
    def steps_share(self) -> float:
        """The affected part of the steps."""
        return float(self.weights.sum()) / float(self.parts.steps.sum())


class LateRank(Struct, frozen=True):
    """A rank that the others wait for."""

    cost: RunCost
    """Of the late rank: by how much it begins its gradients later than the median of the others."""
    by_rank: tuple[tuple[int, float, float | None], ...]
    """In the affected steps: each rank, its time to the gradients, and its waits for input."""
    more_input_ns: float
    """How much of the delay it waits longer for input, per step."""


class ReducedClocks(Struct, frozen=True):
    """Clocks that something reduced."""

    cost: RunCost
    reason: str
    clock_hz: float
    usual_clock_hz: float
    """Without the reason; the highest clock if it never was without."""
    usual_step_ns: float | None
    """Of steps without the reason; None if there are none."""
    temperature_c: float | None
    power_w: float | None


@memoized
def run_parts(signals: Signals) -> tuple[RunParts, ...]:
    """The parts of the run that all ranks timed, by rank; none without timers."""
    timers = signals.run.timers
    if not timers:
        return ()
    rows = [
        int(np.median(np.diff(each.first_step))) if len(each.steps) > 1 else 1 for each in timers
    ]
    # Rows are as wide as a power of two, and so are parts, which have whole rows of every rank.
    width = 1 << (max(rows) - 1).bit_length()
    while max(each.first_step[-1] for each in timers) >= width * _MOST_PARTS:
        width *= 2
    numbers = [np.unique(np.array(each.first_step, np.int64) // width) for each in timers]
    common = reduce(np.intersect1d, numbers)
    return tuple(_parts(each, width, common) for each in timers) if len(common) else ()


def parts_of_worker(signals: Signals) -> RunParts | None:
    """Those of the rank that the report is about; else of the lowest one."""
    rank = signals.trace.source.rank or 0
    parts = run_parts(signals)
    return next((each for each in parts if each.rank == rank), next(iter(parts), None))


def _parts(timers: RunTimers, width: int, numbers: Int64) -> RunParts:
    first = np.array(timers.first_step, np.int64)
    used = np.isin(first // width, numbers)
    part = np.searchsorted(numbers, first[used] // width)
    steps, count = np.array(timers.steps, np.int64)[used], len(numbers)

    def mean(values: Sequence[float | None]) -> Float64:
        if len(values) != len(first):
            return np.full(count, np.nan)
        column = np.array([np.nan if each is None else each for each in values])[used]
        known = ~np.isnan(column)
        weight = np.bincount(part[known], steps[known], count)
        with np.errstate(invalid="ignore", divide="ignore"):
            total = np.bincount(part[known], (steps * column)[known], count)
            return np.asarray(total / np.where(weight > 0, weight, np.nan))

    device = timers.device
    reduced = {} if device is None else device.reduced
    heat = {reason: mean(reduced.get(reason, ())) for reason in HEAT}
    worst = max(HEAT, key=lambda reason: float(np.nan_to_num(heat[reason]).sum()))
    return RunParts(
        rank=timers.rank,
        first_step=numbers * width,
        end_step=np.minimum((numbers + 1) * width, int(first[-1]) + int(timers.steps[-1])),
        steps=np.bincount(part, steps, count).astype(np.int64),
        step_ns=mean(timers.step_ns),
        input_ns=mean(timers.input_ns),
        ready_ns=mean(timers.ready_ns),
        clock_hz=mean(() if device is None else device.clock_hz),
        temperature_c=mean(() if device is None else device.temperature_c),
        power_w=mean(() if device is None else device.power_w),
        heat=np.fmax.reduce([*heat.values()]),
        power_cap=mean(reduced.get(POWER_CAP, ())),
        heat_reason=worst if np.nan_to_num(heat[worst]).any() else "",
        max_clock_hz=None if device is None else device.max_clock_hz,
        device="" if device is None else device.name,
    )


def input_over_run(signals: Signals, least_share: float) -> RunCost | None:
    """Where steps of the run wait for input for a share of their time; None if none do."""
    parts = parts_of_worker(signals)
    if parts is None:
        return None
    cost_ns = np.nan_to_num(parts.input_ns)
    affected = _clearly(cost_ns >= least_share * parts.step_ns, cost_ns)
    return RunCost(parts, affected, cost_ns) if affected.any() else None


def _clearly(affected: Mask, cost_ns: Float64) -> Mask:
    """The affected parts without those that lose little beside them, as after a single delay."""
    if not affected.any():
        return affected
    return np.asarray(affected & (cost_ns >= _CLEAR * cost_ns[affected].mean()))


@memoized
def late_rank(signals: Signals) -> LateRank | None:
    """The rank that begins its gradients later than the others over a part of the run."""
    ranks = run_parts(signals)
    if len(ranks) < 2:
        return None
    step_ns = np.stack([each.step_ns for each in ranks])
    middle_ns = np.median(step_ns, axis=0)
    together = (np.abs(step_ns - middle_ns) <= _SAME_STEPS * middle_ns).all(axis=0)
    input_ns = np.stack([each.input_ns for each in ranks])
    ready_ns = np.stack([each.ready_ns for each in ranks])
    # Where each rank waits for others before its gradients, input comes first.
    delays_ns = np.fmax(_delays(ready_ns), _delays(input_ns))
    latest = np.nan_to_num(delays_ns).argmax(axis=0)
    late = together & (np.nan_to_num(delays_ns).max(axis=0) >= _LATE_SHARE * middle_ns)
    if not late.any():
        return None
    counts = np.bincount(latest[late], minlength=len(ranks))
    rank = int(counts.argmax())
    if counts[rank] < _SAME_RANK * late.sum():
        return None
    cost_ns = np.maximum(np.nan_to_num(delays_ns[rank]), 0.0)
    affected = _clearly(late & (latest == rank), cost_ns)
    cost = RunCost(ranks[rank], affected, cost_ns)

    def mean(values: Float64) -> float | None:
        value = float(np.average(values[affected], weights=cost.weights))
        return None if np.isnan(value) else value

    by_rank = [
        (each.rank, mean(ready) or 0.0, mean(waits))
        for each, ready, waits in zip(ranks, ready_ns, input_ns, strict=True)
    ]
    more_ns = mean(_delays(input_ns)[rank]) or 0.0
    order = sorted(by_rank, key=lambda each: -each[1])
    return LateRank(cost, tuple(order), min(max(more_ns, 0.0), cost.mean_ns))


def _delays(values: Float64) -> Float64:
    """How much longer each rank takes than the median of the others; shape (ranks, parts)."""
    return np.stack(
        [
            own - np.median(np.delete(values, place, axis=0), axis=0)
            for place, own in enumerate(values)
        ]
    )


@memoized
def reduced_clocks(signals: Signals) -> ReducedClocks | None:
    """The rank that loses most to reduced clocks, by heat, a fault, or the limit of power.

    The limit of power counts only beside steps without it: heavy work may always reach it. If heat
    never let go, the clock tells what it costs at most.
    """
    found = [
        reduced
        for parts in run_parts(signals)
        for reason, looks in ((parts.heat_reason, parts.heat), (POWER_CAP, parts.power_cap))
        if (reduced := _reduced(parts, reason, np.nan_to_num(looks) >= _REDUCED)) is not None
    ]
    return max(found, key=lambda each: each.cost.run_share, default=None)


def _reduced(parts: RunParts, reason: str, affected: Mask) -> ReducedClocks | None:
    free = (np.nan_to_num(parts.heat, nan=1.0) < _FREE) & ~affected
    clock_hz = _mean(parts.clock_hz, affected)
    usual_hz = _mean(parts.clock_hz, free) or parts.max_clock_hz
    if clock_hz is None or usual_hz is None or clock_hz >= usual_hz:
        return None
    usual_ns = float(np.median(parts.step_ns[free])) if free.any() else None
    if usual_ns is not None:
        cost_ns = np.maximum(parts.step_ns - usual_ns, 0.0)
    elif reason != POWER_CAP:
        cost_ns = parts.step_ns * (1 - clock_hz / usual_hz)
    else:
        return None
    cost = RunCost(parts, affected, cost_ns)
    if cost.share < _SLOWER:
        return None
    temperature, power = _mean(parts.temperature_c, affected), _mean(parts.power_w, affected)
    return ReducedClocks(cost, reason, clock_hz, usual_hz, usual_ns, temperature, power)


def _mean(values: Float64, rows: Mask) -> float | None:
    known = values[rows & ~np.isnan(values)]
    return float(known.mean()) if len(known) else None
