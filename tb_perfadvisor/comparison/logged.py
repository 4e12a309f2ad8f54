"""What the scalars of two runs say about a change: more steps than a profile has, and no profiler.

Runs are compared at equal steps: what both do at step 1,500, such as reading longer samples, is no
difference between them. Neighboring intervals are alike, so they are not independent: a run of a
thousand intervals does not know its mean a thousand times as well. Means of long blocks are nearly
independent (batch means: Law, "Simulation Modeling and Analysis", chapter 9), and the interval is
that of the ratio of two means of pairs (Cochran, "Sampling Techniques", chapter 6).
"""

from __future__ import annotations

from math import sqrt

import msgspec
import numpy as np

from tb_perfadvisor.comparison.interval import NOISE_SHARE, student_quantile
from tb_perfadvisor.comparison.scaling import scaled_efficiency
from tb_perfadvisor.contract import model
from tb_perfadvisor.contract.model import RecordedInfo
from tb_perfadvisor.plain_text import plain
from tb_perfadvisor.trace.tables import Float64, Int64
from tb_perfadvisor.training.metrics import RunScalars, find_metrics
from tb_perfadvisor.training.pauses import find_long_intervals
from tb_perfadvisor.training.progress import find_progress, overlaps
from tb_perfadvisor.units import format_duration, format_share

_BLOCKS = 20
"""Law recommends 10 to 30: fewer give wide intervals, more are not independent."""
_FEWEST_INTERVALS = 20
_FEWEST_BLOCKS = 10
_FEWEST_IN_BLOCK = 2
"""Blocks of a single interval tell nothing of how blocks vary."""
_LEAST_CHANGE = -0.999
"""No step takes less than no time."""
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
    first_step: list[int]
    """Of each usual interval."""
    steps: list[int]
    elapsed_ns: list[int]
    loss_tag: str
    """Empty if the run logged none."""
    loss_step: list[int]
    loss: list[float]


def logged_run(place: str, scalars: RunScalars, recorded: RecordedInfo | None) -> LoggedRun | None:
    """What a comparison needs of a run; None if it logged too little.

    Steps while the profile was `recorded` do not count.
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
    tag, _ = find_metrics(scalars.series).get("loss", ("", None))
    loss = scalars.series[tag] if tag else None
    is_number = np.isfinite(loss.value) if loss is not None else np.empty(0, bool)
    return LoggedRun(
        place=place,
        first_step=progress.first_step[rows].tolist(),
        steps=progress.steps[rows].tolist(),
        elapsed_ns=progress.elapsed_ns[rows].tolist(),
        loss_tag=tag,
        loss_step=loss.step[is_number].tolist() if loss is not None else [],
        loss=loss.value[is_number].tolist() if loss is not None else [],
    )


def with_logged(
    comparison: model.Comparison, base: LoggedRun | None, targets: list[LoggedRun | None]
) -> model.Comparison:
    """Add what scalars say to a comparison of profiles."""
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
    times = _times_at_equal_steps(base, run)
    if times is None:
        return None
    before_ns, after_ns = times.block_ns
    ratio = float(after_ns.mean() / before_ns.mean())
    residual = after_ns - ratio * before_ns
    error = float(residual.std(ddof=1)) / sqrt(len(residual)) / float(before_ns.mean())
    reach = student_quantile(len(residual) - 1) * error
    share, low, high = ratio - 1, max(ratio - 1 - reach, _LEAST_CHANGE), ratio - 1 + reach
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
        base_step_ns=round(float(before_ns.mean())),
        target_step_ns=round(float(after_ns.mean())),
        base_intervals=times.intervals[0],
        target_intervals=times.intervals[1],
        change_share=share,
        low_share=low,
        high_share=high,
        efficiency=efficiency,
        loss=loss,
        sentences=[],
    )
    return msgspec.structs.replace(change, sentences=_sentences(change))


class _Times(msgspec.Struct, frozen=True):
    """Times of two runs in blocks of the same steps."""

    block_ns: tuple[Float64, Float64]
    """Mean time per step; shape (blocks,)."""
    intervals: tuple[int, int]


def _times_at_equal_steps(base: LoggedRun, run: LoggedRun) -> _Times | None:
    """The time per step of both in blocks; None if they have too few steps in common."""
    first = max(base.first_step[0], run.first_step[0])
    last = min(one.first_step[-1] + one.steps[-1] for one in (base, run))
    if last <= first:
        return None
    edges = np.linspace(first, last, _BLOCKS + 1)
    means, counts = [], []
    for one in (base, run):
        steps = np.array(one.steps, np.float64)
        middle = np.array(one.first_step, np.float64) + steps / 2
        block = np.searchsorted(edges, middle, side="right") - 1
        inside = (block >= 0) & (block < _BLOCKS)
        block, length = block[inside], np.array(one.elapsed_ns, np.float64)[inside]
        in_block = np.bincount(block, minlength=_BLOCKS)
        whole_ns = np.bincount(block, weights=length, minlength=_BLOCKS)
        of_steps = np.bincount(block, weights=steps[inside], minlength=_BLOCKS)
        means.append(whole_ns / np.maximum(of_steps, 1))
        counts.append(in_block)
    known = (counts[0] >= _FEWEST_IN_BLOCK) & (counts[1] >= _FEWEST_IN_BLOCK)
    known &= (means[0] > 0) & (means[1] > 0)
    if known.sum() < _FEWEST_BLOCKS:
        return None
    return _Times(
        (means[0][known], means[1][known]),
        (int(counts[0][known].sum()), int(counts[1][known].sum())),
    )


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
    counts = f"{change.base_intervals:,} and {change.target_intervals:,} intervals"
    sentences = [
        f"{verdict}: {now} per step instead of {was} ({ends}), by the scalars of both runs at "
        f"equal steps, pauses aside ({counts})."
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
