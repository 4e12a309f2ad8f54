"""What kept a run from advancing at its usual pace, and what that cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.trace.tables import Float64
from tb_perfadvisor.training.metrics import is_evaluation
from tb_perfadvisor.training.progress import Progress, overlaps
from tb_perfadvisor.training.scalars import ScalarSeries

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
_SLOWER = 0.1
"""If the last quarter of a run is slower than the first by less than this, it may be chance."""
_STANDARD_ERRORS = 3
"""Steps of two kinds that alternate have unequal means in two quarters by chance."""
_FEWEST_FOR_TREND = 20
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
    """Mean time per step before; of the first quarter of the run if it is gradual."""
    after_ns: float
    """After it began; of the last quarter of the run if it is gradual."""


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


def usual_step_ns(progress: Progress, recordings: Sequence[tuple[int, int]]) -> float:
    """Median time per step outside of recordings; of all intervals if nothing else is left.

    Args:
        progress: The run's intervals.
        recordings: Start and end of each profile, in Unix time.
    """
    free = ~_recorded(progress, recordings)
    per_step_ns = progress.per_step_ns
    return float(np.median(per_step_ns[free] if free.any() else per_step_ns))


def find_delays(
    progress: Progress,
    series: Mapping[str, ScalarSeries],
    recordings: Sequence[tuple[int, int]],
) -> tuple[Delay, ...]:
    """What cost time beyond the usual steps, the costliest first.

    Args:
        progress: The run's intervals.
        series: All scalars of the run, which show when it evaluated its model.
        recordings: Start and end of each profile, in Unix time.
    """
    usual_ns = usual_step_ns(progress, recordings)
    excess_ns = progress.elapsed_ns - local_steps_ns(progress, recordings) * progress.steps
    reasons = find_long_intervals(progress, series, recordings)
    delays = [
        _delay(reason, progress, rows, excess_ns) for reason, rows in reasons.items() if len(rows)
    ]
    is_usual = np.ones(len(progress), dtype=bool)
    for rows in reasons.values():
        is_usual[rows] = False
    delays += _restarts(progress, usual_ns)
    delays += _trend(progress, is_usual)
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

    Args:
        progress: The run's intervals.
        series: All scalars of the run, which show when it evaluated its model.
        recordings: Start and end of each profile, in Unix time.
    """
    is_long = _is_long(progress, recordings)
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


def usual_steps_around(
    progress: Progress,
    series: Mapping[str, ScalarSeries],
    recordings: Sequence[tuple[int, int]],
    start_ns: int,
    end_ns: int,
) -> UsualSteps | None:
    """Time per step shortly before and after a span; None if nothing was logged around it.

    A run may change its speed, so that its median over days says little about one moment.

    Args:
        progress: The run's intervals.
        series: All scalars of the run.
        recordings: Start and end of each profile, in Unix time.
        start_ns: Start of the span, in Unix time.
        end_ns: Its end.
    """
    if not overlaps(progress, start_ns, end_ns).any():
        return None
    is_free = ~_recorded(progress, recordings)
    for rows in find_long_intervals(progress, series, recordings).values():
        is_free[rows] = False
    free = np.flatnonzero(is_free)
    before = free[progress.end_ns[free] <= start_ns][-_NEIGHBORS:]
    after = free[progress.start_ns[free] >= end_ns][:_NEIGHBORS]
    around = np.concatenate((before, after))
    if len(around) < _FEWEST_NEIGHBORS:
        around = free if len(free) else np.arange(len(progress))
    low, median, high = np.quantile(progress.per_step_ns[around], (0.05, 0.5, 0.95))
    return UsualSteps(float(median), float(low), float(high))


def local_steps_ns(progress: Progress, recordings: Sequence[tuple[int, int]]) -> Float64:
    """Usual time per step at each interval: the median of those around it; shape (intervals,).

    A run that became slower for good does not pause from then on.

    Args:
        progress: The run's intervals.
        recordings: Start and end of each profile, in Unix time.
    """
    free = np.flatnonzero(~_recorded(progress, recordings))
    rows = free if len(free) else np.arange(len(progress))
    per_step_ns = progress.per_step_ns[rows]
    width = min(2 * _NEIGHBORS + 1, len(rows))
    windows = np.lib.stride_tricks.sliding_window_view(per_step_ns, width)
    medians = np.concatenate(
        [
            np.median(windows[start : start + _WINDOWS_AT_ONCE], axis=1)
            for start in range(0, len(windows), _WINDOWS_AT_ONCE)
        ]
    )
    # At both ends of the run, the first and the last window serve for several intervals.
    place = np.searchsorted(rows, np.arange(len(progress))) - width // 2
    local: Float64 = medians[np.clip(place, 0, len(medians) - 1)]
    return local


def _is_long(progress: Progress, recordings: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
    """Intervals that took much longer than those around them."""
    ratio = progress.per_step_ns / np.maximum(local_steps_ns(progress, recordings), 1)
    deviation = _TO_DEVIATION * float(np.median(np.abs(ratio - 1)))
    return np.asarray(ratio > max(_LONGER, 1 + _DEVIATIONS * deviation))


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


def _trend(progress: Progress, usual: NDArray[np.bool_]) -> list[Delay]:
    """Steps that became slower during the run."""
    rows = np.flatnonzero(usual)
    if len(rows) < _FEWEST_FOR_TREND:
        return []
    per_step_ns, steps = progress.per_step_ns[rows], progress.steps[rows]
    quarter = len(rows) // 4
    first, last = per_step_ns[:quarter], per_step_ns[-quarter:]
    first_ns, last_ns = float(first.mean()), float(last.mean())
    error_ns = float(np.hypot(first.std(), last.std())) / math.sqrt(quarter)
    if last_ns < max((1 + _SLOWER) * first_ns, first_ns + _STANDARD_ERRORS * error_ns):
        return []
    begin, is_gradual = 0, True
    split = _best_split(per_step_ns)
    if _error_of_split(per_step_ns, split) <= _error_of_line(per_step_ns):
        begin, is_gradual = split, False
        first_ns, last_ns = (float(part.mean()) for part in np.split(per_step_ns, [split]))
    return [
        Delay(
            reason="slower",
            count=1,
            cost_ns=max(int(((per_step_ns - first_ns) * steps)[begin:].sum()), 0),
            first_step=int(progress.first_step[rows[begin]]),
            last_step=int(progress.first_step[rows[-1]] + steps[-1]),
            slowdown=Slowdown(is_gradual, int(progress.start_ns[rows[begin]]), first_ns, last_ns),
        )
    ]


def _best_split(values: Float64) -> int:
    """Where two means describe the values with the least squared error."""
    count, total = np.arange(1, len(values)), np.cumsum(values)[:-1]
    rest = values.sum() - total
    # The error is that of one mean, minus this.
    explained = total**2 / count + rest**2 / (len(values) - count)
    return int(explained.argmax()) + 1


def _error_of_split(values: Float64, split: int) -> float:
    return float(sum(((part - part.mean()) ** 2).sum() for part in np.split(values, [split])))


def _error_of_line(values: Float64) -> float:
    place = np.arange(len(values)) - (len(values) - 1) / 2
    centered = values - values.mean()
    slope = float((place * centered).sum() / (place**2).sum())
    return float(((centered - slope * place) ** 2).sum())
