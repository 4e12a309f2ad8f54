"""How fast a run advanced, from the times at which it logged."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.trace.tables import Float64, Int64
from tb_perfadvisor.training.metrics import ScalarSeries, find_metrics, is_evaluation

_PER_SAMPLE = regex(r"Train/Samples/.+|.+ vs (?:samples|tokens)")
"""DeepSpeed and Megatron-LM number these by samples or tokens."""
_PER_EPOCH = regex(r"(?:.*/)?epoch_.+")
"""Keras numbers these by epoch, not by step."""
_MAX_STEP = 2.0**53
"""Far more steps than any run takes; differences of such numbers fit into 64 bits."""


class Restart(Struct, frozen=True):
    """The run went back to an earlier step, as after loading a checkpoint."""

    from_step: int
    """The last step before."""
    to_step: int
    start_ns: int
    """When the last step before was logged, in Unix time."""
    end_ns: int
    """When the first step after it was logged."""
    repeated_steps: int
    """How many steps the run took again, until it went back once more or ended."""
    until_ns: int
    """When it went back once more, or ended."""


class Progress(Struct, frozen=True):
    """The intervals between the points of one tag; columns of shape (intervals,)."""

    tag: str
    is_per_epoch: bool
    """Whether steps are epochs, because nothing was logged more often."""
    first_step: Int64
    steps: Int64
    """At least 1."""
    start_ns: Int64
    """Unix time."""
    end_ns: Int64
    restarts: tuple[Restart, ...]

    def __len__(self) -> int:
        """Number of intervals."""
        return len(self.steps)

    @property
    def elapsed_ns(self) -> Int64:
        """Length of each interval."""
        return self.end_ns - self.start_ns

    @property
    def per_step_ns(self) -> Float64:
        """Mean time per step of each interval."""
        per_step: Float64 = self.elapsed_ns / self.steps
        return per_step


def find_progress(series: Mapping[str, ScalarSeries]) -> Progress | None:
    """The intervals of the tag that was logged most often while training; None without any.

    Tags that are logged once per epoch serve only if there are no others.
    """
    tags = [tag for tag in series if not (is_evaluation(tag) or _PER_SAMPLE.fullmatch(tag))]
    per_epoch = {tag for tag in tags if _PER_EPOCH.fullmatch(tag)}
    per_step = [tag for tag in tags if tag not in per_epoch]
    # Of tags that were logged equally often, the loss is the one that users know.
    loss, _ = find_metrics(per_step or tags).get("loss", ("", None))
    ordered = sorted(per_step or tags, key=lambda tag: (tag != loss, tag))
    by_tag = {tag: _progress(tag, series[tag]) for tag in ordered}
    best = max(by_tag.values(), key=len, default=None)
    if (best is None or not len(best)) and per_step:
        return find_progress({tag: series[tag] for tag in per_epoch})
    return best if best is not None and len(best) else None


def _progress(tag: str, series: ScalarSeries) -> Progress:
    # A damaged number of a step must not overflow in a difference.
    series = series.select(np.abs(series.step.astype(np.float64)) < _MAX_STEP)
    # A step may be logged twice: training ends with a summary at its last step.
    logged_once = np.diff(series.step, prepend=series.step[0] - 1 if len(series) else 0) != 0
    points = series.select(logged_once)
    advance = np.diff(points.step)
    forward = np.flatnonzero(advance > 0)
    return Progress(
        tag=tag,
        is_per_epoch=_PER_EPOCH.fullmatch(tag) is not None,
        first_step=points.step[forward],
        steps=advance[forward],
        start_ns=points.unix_ns[forward],
        end_ns=points.unix_ns[forward + 1],
        restarts=_restarts(points, np.flatnonzero(advance < 0), forward),
    )


def _restarts(
    points: ScalarSeries, back: NDArray[np.intp], forward: NDArray[np.intp]
) -> tuple[Restart, ...]:
    """The restarts between the first step forward and the last.

    After points in `back` the run went back, after those in `forward` it advanced.
    """
    if len(forward):
        back = back[(back > forward[0]) & (back < forward[-1])]
    if not len(forward) or not len(back):
        return ()
    highest = np.maximum.accumulate(points.step)
    until = np.append(back[1:], forward[-1] + 1)
    return tuple(
        Restart(
            from_step=int(points.step[row]),
            to_step=int(points.step[row + 1]),
            start_ns=int(points.unix_ns[row]),
            end_ns=int(points.unix_ns[row + 1]),
            repeated_steps=int(min(highest[row], points.step[last]) - points.step[row + 1]),
            until_ns=int(points.unix_ns[last]),
        )
        for row, last in zip(back.tolist(), until.tolist(), strict=True)
    )


def overlaps(progress: Progress, start_ns: int, end_ns: int) -> NDArray[np.bool_]:
    """Which intervals share time with a span; shape (intervals,)."""
    shared: NDArray[np.bool_] = (progress.start_ns < end_ns) & (progress.end_ns > start_ns)
    return shared
