"""Pauses of a run, and its parts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.trace.tables import Float64
from tb_perfadvisor.training.metrics import ScalarSeries, is_evaluation
from tb_perfadvisor.training.progress import Progress, overlaps

LEAST_CHANGE = 0.1
"""Steps whose time changes by less may have changed by chance."""
STANDARD_ERRORS = 3
"""Steps of two kinds that alternate have unequal means in two parts by chance."""
FEWEST_INTERVALS = 20
"""Of a run that may have changed its pace."""
_SHORTEST = 5
"""Intervals of a part. Fewer are an episode."""


class Regime(Struct, frozen=True):
    """A part of a run."""

    first_step: int
    last_step: int
    start_ns: int
    """Unix time, as is the end."""
    end_ns: int
    steps: int
    """That the run took in it, repeated ones included."""
    step_ns: float
    """Median time per step, without longer intervals."""


def find_regimes(progress: Progress, is_usual: NDArray[np.bool_]) -> tuple[Regime, ...]:
    """The parts of a run, in order of time; one if steps always take equally long.

    Steps that become slower little by little are one part.

    `is_usual` tells which intervals are not longer than those around them.
    """
    rows = np.flatnonzero(is_usual)
    if not len(rows):
        rows = np.arange(len(progress))
    per_step_ns = progress.per_step_ns[rows]
    starts = [0, *_changes(per_step_ns)] if len(rows) >= FEWEST_INTERVALS else [0]
    # A part begins where its first usual interval does. Longer ones before it belong to the last.
    bounds = [0, *rows[starts[1:]].tolist(), len(progress)]
    return tuple(
        _regime(progress, begin, end, float(np.median(values)))
        for begin, end, values in zip(
            bounds[:-1], bounds[1:], np.split(per_step_ns, starts[1:]), strict=True
        )
    )


def _regime(progress: Progress, begin: int, end: int, step_ns: float) -> Regime:
    steps = progress.steps[begin:end]
    return Regime(
        first_step=int(progress.first_step[begin]),
        last_step=int(progress.first_step[end - 1] + steps[-1]),
        start_ns=int(progress.start_ns[begin]),
        end_ns=int(progress.end_ns[end - 1]),
        steps=int(steps.sum()),
        step_ns=step_ns,
    )


def _changes(values: Float64, offset: int = 0) -> Iterator[int]:
    """Where the mean changes from one value to the next, by binary segmentation.

    `values` are times per step, in order; `offset` is the place of the first.
    """
    if len(values) < 2 * _SHORTEST:
        return
    split = _best_split(values)
    before, after = np.split(values, [split])
    if not is_change(before, after) or _error_of_split(values, split) > _error_of_line(values):
        return
    yield from _changes(before, offset)
    yield offset + split
    yield from _changes(after, offset + split)


def is_change(before: Float64, after: Float64) -> bool:
    """Whether two parts of a run differ in their mean time per step by more than chance."""
    means = float(before.mean()), float(after.mean())
    error = math.hypot(
        float(before.std()) / math.sqrt(len(before)), float(after.std()) / math.sqrt(len(after))
    )
    least = max(LEAST_CHANGE * min(means), STANDARD_ERRORS * error)
    return abs(means[1] - means[0]) >= least


def _best_split(values: Float64) -> int:
    """Where two means describe the values with the least squared error."""
    count, total = np.arange(1, len(values)), np.cumsum(values)[:-1]
    rest = values.sum() - total
    # The error is that of one mean, minus this.
    explained = total**2 / count + rest**2 / (len(values) - count)
    within = slice(_SHORTEST - 1, len(values) - _SHORTEST)
    return int(explained[within].argmax()) + _SHORTEST


def _error_of_split(values: Float64, split: int) -> float:
    return float(sum(((part - part.mean()) ** 2).sum() for part in np.split(values, [split])))


def _error_of_line(values: Float64) -> float:
    place = np.arange(len(values)) - (len(values) - 1) / 2
    centered = values - values.mean()
    slope = float((place * centered).sum() / (place**2).sum())
    return float(((centered - slope * place) ** 2).sum())


Reason = Literal["start", "restart", "evaluation", "recording", "pause", "slower"]

_LONGER = 1.5
"""An interval of 1.5 times the usual length is no variation of the steps: something else ran."""
_DEVIATIONS = 5
"""If intervals vary much, only one that differs by five deviations is told."""
_TO_DEVIATION = 1.4826
"""The median absolute deviation of normally distributed values, times this, is their standard
deviation."""
_REGULAR = 0.1
"""Pauses are regular if their distances differ by less than this: logging rounds them."""
_FEWEST_REGULAR = 3
_NEIGHBORS = 10
"""Intervals on each side whose median says what is usual at a time: enough to be steady, and few
enough to be of that time."""
_WINDOWS_AT_ONCE = 50_000
"""Windows of 21 intervals take 8 MB."""
_FEWEST_NEIGHBORS = 3
"""The median of fewer intervals is that of any one of them."""
_MINOR = 0.01
"""What costs less than 1 % of the run is not told, except for restarts."""


class Slowdown(Struct, frozen=True):
    """How steps became slower."""

    is_gradual: bool
    """Whether they became slower little by little, rather than from one step to the next."""
    start_unix_ns: int
    """When it began."""
    before_ns: float
    """Median time per step before; if it is gradual, mean of the first quarter of the run."""
    after_ns: float
    """After it began; if it is gradual, mean of the last quarter of the run."""


class Delay(Struct, frozen=True):
    """Time beyond that of usual steps, by reason."""

    reason: Reason
    count: int
    """How often it happened."""
    cost_ns: int
    """In all."""
    first_step: int
    """Where it began."""
    last_step: int
    every_steps: int | None = None
    """The distance, if it is regular."""
    slowdown: Slowdown | None = None
    """Of steps that became slower."""


def find_delays(
    progress: Progress,
    series: Mapping[str, ScalarSeries],
    recordings: Sequence[tuple[int, int]],
) -> tuple[Delay, ...]:
    """What cost time beyond the usual steps, the costliest first.

    `series` shows when the run evaluated its model. `recordings` has start and end of each profile,
    in Unix time.
    """
    excess_ns = progress.elapsed_ns - local_steps_ns(progress) * progress.steps
    reasons = find_long_intervals(progress, series, recordings)
    delays = [
        _delay(reason, progress, rows, excess_ns) for reason, rows in reasons.items() if len(rows)
    ]
    is_usual = is_usual_interval(progress)
    regimes = find_regimes(progress, is_usual)
    delays += _restarts(progress, float(np.median(progress.per_step_ns)))
    delays += _trend(progress, is_usual, regimes)
    whole_ns = int(progress.end_ns[-1] - progress.start_ns[0])
    told = [
        delay for delay in delays if delay.cost_ns >= _MINOR * whole_ns or delay.reason == "restart"
    ]
    return tuple(sorted(told, key=lambda delay: -delay.cost_ns))


def find_long_intervals(
    progress: Progress,
    series: Mapping[str, ScalarSeries],
    recordings: Sequence[tuple[int, int]],
) -> dict[Reason, NDArray[np.intp]]:
    """Intervals in which steps took much longer than usual, by reason; each has one reason.

    Arguments are those of `find_delays`.
    """
    is_long = ~is_usual_interval(progress)
    started = int(np.argmin(np.append(is_long, False)))  # long intervals at the very beginning
    candidates: tuple[tuple[Reason, NDArray[np.bool_]], ...] = (
        ("start", np.arange(len(progress)) < started),
        ("recording", _recorded(progress, recordings)),
        ("evaluation", _evaluated(progress, series)),
        ("pause", np.ones(len(progress), dtype=bool)),
    )
    found: dict[Reason, NDArray[np.intp]] = {}
    for reason, applies in candidates:
        found[reason] = np.flatnonzero(is_long & applies)
        is_long[found[reason]] = False
    return found


class UsualSteps(Struct, frozen=True):
    """Time per step in intervals of a run."""

    median_ns: float
    low_ns: float
    """Nine of ten intervals lie between the low and the high end."""
    high_ns: float


def usual_steps_around(progress: Progress, start_ns: int, end_ns: int) -> UsualSteps | None:
    """Time per step shortly before and after a span; None if nothing was logged around it.

    A run may change its speed, so that its median over days says little about one moment.

    Start and end of the span are in Unix time.
    """
    inside = overlaps(progress, start_ns, end_ns)
    if not inside.any():
        return None
    free = np.flatnonzero(is_usual_interval(progress) & ~inside)
    before = free[progress.end_ns[free] <= start_ns][-_NEIGHBORS:]
    after = free[progress.start_ns[free] >= end_ns][:_NEIGHBORS]
    around = np.concatenate((before, after))
    if len(around) < _FEWEST_NEIGHBORS:
        around = free if len(free) else np.arange(len(progress))
    low, median, high = np.quantile(progress.per_step_ns[around], (0.05, 0.5, 0.95))
    return UsualSteps(float(median), float(low), float(high))


def local_steps_ns(progress: Progress) -> Float64:
    """Usual time per step at each interval: the median of those around it; shape (intervals,).

    A run that became slower for good does not pause from then on.
    """
    per_step_ns = progress.per_step_ns
    width = min(2 * _NEIGHBORS + 1, len(progress))
    windows = np.lib.stride_tricks.sliding_window_view(per_step_ns, width)
    medians = np.concatenate(
        [
            np.median(windows[start : start + _WINDOWS_AT_ONCE], axis=1)
            for start in range(0, len(windows), _WINDOWS_AT_ONCE)
        ]
    )
    # At both ends of the run, the first and the last window serve for several intervals.
    place = np.arange(len(progress)) - width // 2
    local: Float64 = medians[np.clip(place, 0, len(medians) - 1)]
    return local


def is_usual_interval(progress: Progress) -> NDArray[np.bool_]:
    """Which intervals took hardly longer than those around them; shape (intervals,).

    Which profiles are known plays no part: numbers must not change when one more is analyzed.
    """
    ratio = progress.per_step_ns / np.maximum(local_steps_ns(progress), 1)
    deviation = _TO_DEVIATION * float(np.median(np.abs(ratio - 1)))
    return np.asarray(ratio <= max(_LONGER, 1 + _DEVIATIONS * deviation))


def _recorded(progress: Progress, recordings: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
    recorded = np.zeros(len(progress), dtype=bool)
    for start_ns, end_ns in recordings:
        recorded |= overlaps(progress, start_ns, end_ns)
    return recorded


def _evaluated(progress: Progress, series: Mapping[str, ScalarSeries]) -> NDArray[np.bool_]:
    """Intervals in which results of an evaluation were logged."""
    evaluated = np.zeros(len(progress), dtype=bool)
    for tag, logged in series.items():
        if is_evaluation(tag):
            row = np.searchsorted(progress.start_ns, logged.unix_ns, side="right") - 1
            row = row[row >= 0]
            evaluated[row] = True
    return evaluated


def _delay(reason: Reason, progress: Progress, rows: NDArray[np.intp], excess_ns: Float64) -> Delay:
    at = progress.first_step[rows]
    every = None
    if reason in ("evaluation", "pause") and len(rows) >= _FEWEST_REGULAR:
        distance = np.diff(at)
        typical = float(np.median(distance))
        if (np.abs(distance - typical) <= max(_REGULAR * typical, 1)).all():
            every = round(typical)
    return Delay(
        reason=reason,
        count=len(rows) if reason != "start" else 1,
        cost_ns=int(excess_ns[rows].sum()),
        first_step=int(at[0]),
        last_step=int(at[-1] + progress.steps[rows[-1]]),
        every_steps=every,
    )


def _restarts(progress: Progress, usual_ns: float) -> list[Delay]:
    """Restarts cost the time until the run logs again, and the steps that it repeats.

    Repeating cannot take longer than the run went on afterwards, whatever numbers its steps have.
    """
    restarts = progress.restarts
    if not restarts:
        return []
    away_ns = sum(restart.end_ns - restart.start_ns for restart in restarts)
    repeating_ns = sum(
        min(restart.repeated_steps * usual_ns, restart.until_ns - restart.end_ns)
        for restart in restarts
    )
    return [
        Delay(
            reason="restart",
            count=len(restarts),
            cost_ns=int(away_ns + repeating_ns),
            first_step=restarts[0].from_step,
            last_step=restarts[-1].from_step,
        )
    ]


def _trend(progress: Progress, usual: NDArray[np.bool_], regimes: Sequence[Regime]) -> list[Delay]:
    """Steps that became slower during the run: at once, once or more, or little by little."""
    rows = np.flatnonzero(usual)
    if len(regimes) > 1:
        return [
            _slower(progress, rows, before, after) for before, after in _slower_regimes(regimes)
        ]
    if len(rows) < FEWEST_INTERVALS:
        return []
    per_step_ns = progress.per_step_ns[rows]
    quarter = len(rows) // 4
    first, last = per_step_ns[:quarter], per_step_ns[-quarter:]
    if last.mean() < first.mean() or not is_change(first, last):
        return []
    slowdown = Slowdown(
        is_gradual=True,
        start_unix_ns=int(progress.start_ns[rows[0]]),
        before_ns=float(first.mean()),
        after_ns=float(last.mean()),
    )
    return [_delay_of_slowdown(progress, rows, slowdown)]


def _slower_regimes(regimes: Sequence[Regime]) -> Iterator[tuple[Regime, Regime]]:
    """Each part that is slower than the fastest one before it, behind that one."""
    fastest = regimes[0]
    for regime in regimes[1:]:
        if regime.step_ns > (1 + LEAST_CHANGE) * fastest.step_ns:
            yield fastest, regime
        elif regime.step_ns < fastest.step_ns:
            fastest = regime


def _slower(progress: Progress, rows: NDArray[np.intp], before: Regime, after: Regime) -> Delay:
    start_ns, end_ns = progress.start_ns[rows], progress.end_ns[rows]
    inside = rows[(start_ns >= after.start_ns) & (end_ns <= after.end_ns)]
    slowdown = Slowdown(
        is_gradual=False,
        start_unix_ns=after.start_ns,
        before_ns=before.step_ns,
        after_ns=after.step_ns,
    )
    return _delay_of_slowdown(progress, inside, slowdown)


def _delay_of_slowdown(progress: Progress, rows: NDArray[np.intp], slowdown: Slowdown) -> Delay:
    excess_ns = progress.per_step_ns[rows] - slowdown.before_ns
    return Delay(
        reason="slower",
        count=1,
        cost_ns=max(int((excess_ns * progress.steps[rows]).sum()), 0),
        first_step=int(progress.first_step[rows[0]]),
        last_step=int(progress.first_step[rows[-1]] + progress.steps[rows[-1]]),
        slowdown=slowdown,
    )
