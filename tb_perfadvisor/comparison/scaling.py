"""How a program scales with devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

from msgspec import Struct

from tb_perfadvisor.comparison.differences import different_shapes
from tb_perfadvisor.comparison.run_facts import RunFacts, Setup
from tb_perfadvisor.contract import model
from tb_perfadvisor.signals.core.causes import Cause
from tb_perfadvisor.signals.workload.workload import SPLITS_THE_MODEL
from tb_perfadvisor.units import format_duration, format_share

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
