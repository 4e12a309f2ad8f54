"""What the scalars of two runs say about a change: more steps than a profile has, and no profiler.

Neighboring intervals are alike, so they are not independent: a run of a thousand intervals does not
know its mean a thousand times as well. Means of long blocks are nearly independent, and the
interval is that of their mean (batch means: Law, "Simulation Modeling and Analysis", chapter 9).
"""

from __future__ import annotations

from math import sqrt

import msgspec
import numpy as np

from tb_perfadvisor.plain_text import plain
from tb_perfadvisor.report.comparison import model
from tb_perfadvisor.report.comparison.interval import (
    NOISE_SHARE,
    change_interval,
    student_quantile,
)
from tb_perfadvisor.report.comparison.scaling import scaled_efficiency
from tb_perfadvisor.report.model import RecordedInfo
from tb_perfadvisor.trace.tables import Float64, Int64
from tb_perfadvisor.training.metrics import find_metrics
from tb_perfadvisor.training.pauses import find_long_intervals
from tb_perfadvisor.training.progress import find_progress, overlaps
from tb_perfadvisor.training.scalars import RunScalars
from tb_perfadvisor.units import format_duration, format_share

_BLOCKS = 20
"""Law recommends 10 to 30: fewer give wide intervals, more are not independent."""
_FEWEST_INTERVALS = 20
"""Blocks of a single interval tell nothing of how blocks vary."""
_LOSS_BLOCKS = 8
_FEWEST_LOSSES = 3
"""Points in a block, so that one of them does not decide."""
_SAME_LOSS = 0.005
"""A loss that differs by less than this differs as much between two seeds."""
_UNCLEAR_LOSS = 0.05
"""If the loss of a run varies by more, "no difference was seen" says nothing."""


class LoggedRun(msgspec.Struct, frozen=True, kw_only=True):
    """What a comparison needs of the scalars of a run."""

    place: str
    """Where its event files are: two profiles of one run are not compared by it."""
    block_ns: list[int]
    """Mean time per step in blocks of usual intervals."""
    step_ns: int
    """Mean over all of them."""
    intervals: int
    loss_tag: str
    """Empty if the run logged none."""
    loss_step: list[int]
    loss: list[float]


def logged_run(place: str, scalars: RunScalars, recorded: RecordedInfo | None) -> LoggedRun | None:
    """What a comparison needs of a run; None if it logged too little.

    Args:
        place: Where its event files are.
        scalars: All that it logged.
        recorded: When the profile was recorded that is compared; those steps do not count.
    """
    progress = find_progress(scalars.series)
    if progress is None or progress.is_per_epoch:
        return None
    spans = [] if recorded is None else [(recorded.start_unix_ns, recorded.end_unix_ns)]
    usual = np.ones(len(progress), dtype=bool)
    for rows in find_long_intervals(progress, scalars.series, spans).values():
        usual[rows] = False
    for span in spans:
        usual &= ~overlaps(progress, *span)
    rows = np.flatnonzero(usual)
    if len(rows) < _FEWEST_INTERVALS:
        return None
    elapsed_ns, steps = progress.elapsed_ns[rows], progress.steps[rows]
    blocks = [
        int(elapsed.sum() / count.sum())
        for elapsed, count in zip(
            np.array_split(elapsed_ns, min(_BLOCKS, len(rows) // 2)),
            np.array_split(steps, min(_BLOCKS, len(rows) // 2)),
            strict=True,
        )
    ]
    tag, _ = find_metrics(scalars.series).get("loss", ("", None))
    loss = scalars.series[tag] if tag else None
    is_number = np.isfinite(loss.value) if loss is not None else np.empty(0, bool)
    return LoggedRun(
        place=place,
        block_ns=blocks,
        step_ns=int(elapsed_ns.sum() / steps.sum()),
        intervals=len(rows),
        loss_tag=tag,
        loss_step=loss.step[is_number].tolist() if loss is not None else [],
        loss=loss.value[is_number].tolist() if loss is not None else [],
    )


def with_logged(
    comparison: model.Comparison, base: LoggedRun | None, targets: list[LoggedRun | None]
) -> model.Comparison:
    """Add what scalars say to a comparison of profiles.

    Args:
        comparison: Of the profiles.
        base: The base's run, if it logged scalars.
        targets: Those of the targets, in their order.
    """
    if base is None:
        return comparison
    compared = [
        msgspec.structs.replace(target, logged=_compared(target, base, run))
        for target, run in zip(comparison.targets, targets, strict=True)
    ]
    return msgspec.structs.replace(comparison, targets=compared)


def _compared(
    target: model.ComparedTarget, base: LoggedRun, run: LoggedRun | None
) -> model.LoggedChange | None:
    if run is None or run.place == base.place or target.verdict == "not_comparable":
        return None
    ends = change_interval(base.block_ns, run.block_ns)
    if ends is None:
        return None
    share = run.step_ns / base.step_ns - 1
    low, high = ends
    efficiency = None
    if target.scaling is not None:
        expected, *least_and_most = (
            scaled_efficiency(target.scaling, end) for end in (share, low, high)
        )
        efficiency = (expected, min(least_and_most), max(least_and_most))
    is_same_batch = target.scaling is None and not any(
        warning.id == "batch-differs" for warning in target.warnings
    )
    loss = _loss(base, run) if is_same_batch else None
    change = model.LoggedChange(
        base_step_ns=base.step_ns,
        target_step_ns=run.step_ns,
        base_intervals=base.intervals,
        target_intervals=run.intervals,
        change_share=share,
        low_share=low,
        high_share=high,
        efficiency=efficiency,
        loss=loss,
        sentences=[],
    )
    return msgspec.structs.replace(change, sentences=_sentences(change))


def _loss(base: LoggedRun, run: LoggedRun) -> model.LossChange | None:
    """The loss over the later half of the steps that both runs logged."""
    if not base.loss_tag or base.loss_tag != run.loss_tag:
        return None
    steps = [np.array(one.loss_step, np.int64) for one in (base, run)]
    if not all(len(step) for step in steps):
        return None
    first = max(int(step.min()) for step in steps)
    last = min(int(step.max()) for step in steps)
    middle = (first + last) // 2
    edges = np.linspace(middle, last, _LOSS_BLOCKS + 1)
    before, after = (
        _block_means(step, np.array(one.loss), edges)
        for step, one in zip(steps, (base, run), strict=True)
    )
    if last <= middle or before is None or after is None:
        return None
    difference, mean = after - before, float(np.abs(before).mean())
    if not mean:
        return None
    change = float(difference.mean()) / mean
    error = float(difference.std(ddof=1)) / sqrt(_LOSS_BLOCKS) / mean
    reach = student_quantile(_LOSS_BLOCKS - 1) * error
    low, high = change - reach, change + reach
    if high < -_SAME_LOSS:
        verdict: model.LossVerdict = "lower"
    elif low > _SAME_LOSS:
        verdict = "higher"
    else:
        verdict = "same" if reach <= _UNCLEAR_LOSS else "unclear"
    return model.LossChange(
        tag=base.loss_tag,
        first_step=middle,
        last_step=last,
        base=float(before.mean()),
        target=float(after.mean()),
        change_share=change,
        low_share=low,
        high_share=high,
        verdict=verdict,
    )


def _block_means(step: Int64, value: Float64, edges: Float64) -> Float64 | None:
    """Mean value between each two edges; None if one has too few points."""
    block = np.searchsorted(edges, step, side="right") - 1
    block[step == edges[-1]] = _LOSS_BLOCKS - 1
    inside = (block >= 0) & (block < _LOSS_BLOCKS)
    counts = np.bincount(block[inside], minlength=_LOSS_BLOCKS)
    if counts.min() < _FEWEST_LOSSES:
        return None
    sums = np.bincount(block[inside], weights=value[inside], minlength=_LOSS_BLOCKS)
    means: Float64 = sums / counts
    return means


def _sentences(change: model.LoggedChange) -> list[str]:
    was, now = format_duration(change.base_step_ns), format_duration(change.target_step_ns)
    low, high = change.low_share, change.high_share
    ends = f"{_signed(low)} to {_signed(high)} with 95 % confidence"
    if high < -NOISE_SHARE:
        verdict = "Faster without the profiler"
    elif low > NOISE_SHARE:
        verdict = "Slower without the profiler"
    else:
        verdict = "No clear change without the profiler"
    sentences = [
        f"{verdict}: {now} per step instead of {was} ({ends}), by the scalars of both runs, pauses "
        f"aside, in {change.base_intervals:,} and {change.target_intervals:,} intervals."
    ]
    if change.efficiency is not None:
        expected, least, most = map(format_share, change.efficiency)
        sentences.append(f"Scaling efficiency by these steps: {expected} ({least} to {most}).")
    if change.loss is not None:
        sentences.append(_loss_sentence(change.loss))
    return sentences


def _loss_sentence(loss: model.LossChange) -> str:
    where = f"{plain(loss.tag)}, steps {loss.first_step:,} to {loss.last_step:,}"
    ends = f"{_signed(loss.low_share)} to {_signed(loss.high_share)}"
    values = f"{loss.target:.4g} instead of {loss.base:.4g}"
    if loss.verdict == "same":
        return f"The loss went on as before: {values} ({ends}; {where})."
    if loss.verdict == "unclear":
        return f"The loss varies too much to compare: {values} ({ends}; {where})."
    return (
        f"The loss is {loss.verdict}: {values} ({ends}; {where}). "
        "Other seeds differ, too; if these are equal, the change altered results."
    )


def _signed(share: float) -> str:
    return f"{100 * share:+.1f} %".replace("-", "−")
