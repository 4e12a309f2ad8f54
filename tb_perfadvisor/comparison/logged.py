"""What the scalars of two runs say about a change: more steps than a profile has, and no profiler.

Runs are compared at equal steps: what both do at step 1,500, such as reading longer samples, is no
difference between them. Neighboring intervals are alike, so they are not independent: a run of a
thousand intervals does not know its mean a thousand times as well. Means of long blocks are nearly
independent (batch means: Law, "Simulation Modeling and Analysis", chapter 9), and the interval is
that of the ratio of two means of pairs (Cochran, "Sampling Techniques", chapter 6).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import sqrt
from typing import Final

import msgspec
import numpy as np
from msgspec import Struct

from tb_perfadvisor.comparison.differences import different_shapes
from tb_perfadvisor.comparison.interval import NOISE_SHARE, student_quantile
from tb_perfadvisor.comparison.run_facts import RunFacts, Setup
from tb_perfadvisor.contract import model
from tb_perfadvisor.contract.model import RecordedInfo
from tb_perfadvisor.plain_text import plain
from tb_perfadvisor.signals.core.causes import Cause
from tb_perfadvisor.signals.workload.workload import SPLITS_THE_MODEL
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


_MAX_NAMED = 3
"""Causes in a sentence; more are not read."""
_NAMED_SHARE = 0.01
"""Of the time that is lost. Smaller causes change no decision."""


def find_scaling(
    base: RunFacts, target: RunFacts, change: model.TimeChange, causes: Sequence[model.CauseChange]
) -> model.Scaling | None:
    """How a program scales from one number of devices to the other.

    None if the numbers are equal or unknown, if the devices differ, or if it is unknown how much
    work each device does in a step: the batch of each rank must be known, or the shapes must be
    equal, and no parallelism may split the model.

    Both runs have steps and are comparable. The change is that of the step; those of causes are per
    step, too.
    """
    counts = device_count(base.setup), device_count(target.setup)
    work = _work_per_device(base, target)
    if None in counts or counts[0] == counts[1] or work is None:
        return None
    base_devices, target_devices = counts
    assert base_devices is not None
    assert target_devices is not None
    if base.setup.device != target.setup.device or not change.speed_up:
        return None
    has_more = target_devices > base_devices
    # The target's samples per second and device, as a share of the base's.
    rate = work * change.speed_up
    low, high = (
        None if share is None else work / (1 + share)
        for share in (change.high_share, change.low_share)
    )
    efficiency = rate if has_more else 1 / rate
    ends = (low, high) if has_more else (high and 1 / high, low and 1 / low)
    return model.Scaling(
        base_devices=base_devices,
        target_devices=target_devices,
        is_of_ranks=base.setup.device is None,
        work_per_device=work,
        throughput_ratio=rate * target_devices / base_devices,
        efficiency=efficiency,
        low_efficiency=ends[0],
        high_efficiency=ends[1],
        lost=_lost(causes, work if has_more else 1 / work, has_more=has_more),
    )


def scaled_efficiency(scaling: model.Scaling, change_share: float) -> float:
    """The efficiency that follows from a change of the step time.

    The change is a share of the base's step time.
    """
    rate = scaling.work_per_device / (1 + change_share)
    return rate if scaling.target_devices > scaling.base_devices else 1 / rate


def device_count(setup: Setup) -> int | None:
    """The devices of all ranks, or the ranks on the CPU; None if events of devices are missing."""
    ranks = setup.world_size or setup.workers
    if setup.device is None:
        return ranks
    return ranks * setup.devices_used if setup.devices_used else None


def scaling_headline(scaling: model.Scaling) -> str:
    """Throughput and efficiency in one sentence."""
    kind = "rank" if scaling.is_of_ranks else "device"
    counts = scaling.base_devices, scaling.target_devices
    was, now = (f"{count:,} {kind}{'s' if count > 1 else ''}" for count in counts)
    return (
        f"{scaling.throughput_ratio:.2f} times the throughput with {now} instead of {was}: "
        f"{format_share(scaling.efficiency)} scaling efficiency"
    )


def scaling_explanation(scaling: model.Scaling) -> str | None:
    """Why a step on more devices takes longer; None if it loses nothing."""
    lost_ns = sum(cause.change_ns for cause in scaling.lost)
    if lost_ns <= 0:
        return None
    grown = [cause for cause in scaling.lost if cause.change_ns >= _NAMED_SHARE * lost_ns]
    named = ", ".join(
        f"{cause.label} +{format_duration(cause.change_ns)}" for cause in grown[:_MAX_NAMED]
    )
    longer = format_duration(lost_ns)
    return f"A step takes {longer} longer than it would with perfect scaling: {named}."


def _work_per_device(base: RunFacts, target: RunFacts) -> float | None:
    """The target's samples per step and device, divided by the base's; None if unknown."""
    before, after = base.setup, target.setup
    if SPLITS_THE_MODEL.intersection((*before.parallelism, *after.parallelism)):
        return None
    if before.batch and after.batch and before.batch != after.batch:
        return after.batch / before.batch
    is_known = bool(base.shapes and target.shapes)
    if different_shapes(base.shapes, target.shapes) is not None:
        return None
    return 1.0 if is_known or before.batch else None


def _lost(
    causes: Sequence[model.CauseChange], work: float, *, has_more: bool
) -> list[model.CauseChange]:
    """By how much each cause exceeds its share of a step that scales perfectly; the most first."""
    few = {cause.cause: cause.base_ns if has_more else cause.target_ns for cause in causes}
    many = {cause.cause: cause.target_ns if has_more else cause.base_ns for cause in causes}
    return _differences({name: round(work * ns) for name, ns in few.items()}, many)


def _differences(ideal: Mapping[str, int], real: Mapping[str, int]) -> list[model.CauseChange]:
    lost = [
        model.CauseChange(
            cause=name,
            label=Cause(name).label,
            base_ns=ideal[name],
            target_ns=real[name],
            change_ns=real[name] - ideal[name],
        )
        for name in ideal
    ]
    return sorted(lost, key=lambda cause: -cause.change_ns)


BREAKS: Final = 0.5
"""An added device that brings less than half of what those before bring is better spent on a
second run."""


class _Point(Struct, frozen=True):
    """A run, relative to the base."""

    devices: int
    throughput: float
    scaling: model.Scaling | None
    """None for the base."""

    @property
    def lost(self) -> dict[str, model.CauseChange]:
        """By label, where more devices than the base's lose time."""
        scaling = self.scaling
        if scaling is None or scaling.target_devices < scaling.base_devices:
            return {}
        return {cause.label: cause for cause in scaling.lost}


def scaling_course(targets: Sequence[model.ComparedTarget]) -> list[str]:
    """What each number of devices adds to the one before it, in sentences.

    The runs were compared with the same base. There are no sentences with
    fewer than three numbers of devices.
    """
    scalings = [target.scaling for target in targets if target.scaling is not None]
    points = {scaling.base_devices: _Point(scaling.base_devices, 1.0, None) for scaling in scalings}
    for scaling in scalings:
        devices = scaling.target_devices
        points.setdefault(devices, _Point(devices, scaling.throughput_ratio, scaling))
    ordered = [points[devices] for devices in sorted(points)]
    if len(ordered) < 3:
        return []
    kind = "rank" if scalings[0].is_of_ranks else "device"
    added = [_added(fewer, more) for fewer, more in pairwise(ordered)]
    for share, (fewer, more) in zip(added, pairwise(ordered), strict=True):
        if share < BREAKS:
            brings = "costs throughput" if share < 0 else f"brings {format_share(share)} of it"
            return [
                f"Scaling breaks from {fewer.devices:,} to {more.devices:,} {kind}s: of the"
                f" throughput that each of {fewer.devices:,} brings, each one added {brings}."
                + _grown(fewer, more)
            ]
    return [
        f"Scaling holds from {ordered[0].devices:,} to {ordered[-1].devices:,} {kind}s: each one"
        f" added brings {format_share(min(added))} or more of what each before it brings."
    ]


def _added(fewer: _Point, more: _Point) -> float:
    """Throughput of each device that was added, as a share of that of each before."""
    each = fewer.throughput / fewer.devices
    return (more.throughput - fewer.throughput) / (more.devices - fewer.devices) / each


def _grown(fewer: _Point, more: _Point) -> str:
    """The cause that grew most from one to the other; empty if their work differs."""
    if more.scaling is None or (
        fewer.scaling is not None and fewer.scaling.work_per_device != more.scaling.work_per_device
    ):
        return ""
    before = {label: cause.change_ns for label, cause in fewer.lost.items()}
    grown = {label: cause.change_ns - before.get(label, 0) for label, cause in more.lost.items()}
    label = max(grown, key=grown.__getitem__, default="")
    if not label or grown[label] <= 0:
        return ""
    return f" {label} grows most, by {format_duration(grown[label])} per step."
