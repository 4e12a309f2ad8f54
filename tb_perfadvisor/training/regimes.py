"""Parts of a run in which steps take equally long, before and after its pace changed."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.trace.tables import Float64
from tb_perfadvisor.training.progress import Progress

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

    Args:
        progress: The run's intervals.
        is_usual: Which of them are not longer than those around them.
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

    Args:
        values: Times per step, in order.
        offset: Of the first value.
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
