"""Where scaling breaks, over runs with several numbers of devices."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from msgspec import Struct

from tb_perfadvisor.contract import model
from tb_perfadvisor.units import format_duration, format_share

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

    Args:
        targets: Runs that were compared with the same base.

    Returns:
        Empty with fewer than three numbers of devices.
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
