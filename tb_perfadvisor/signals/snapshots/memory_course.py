"""The memory of the device that a snapshot is mostly about, and that device's size."""

from __future__ import annotations

from tb_perfadvisor.hardware.lookup import named_device
from tb_perfadvisor.signals.core.device import device_facts
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.snapshots.course import Course, follow


@memoized
def courses(signals: Signals) -> tuple[Course, ...]:
    """The memory of each device in the worker's snapshot; empty without a snapshot."""
    snapshot = signals.trace.snapshot
    if snapshot is None:
        return ()
    return tuple(follow(snapshot, device) for device in snapshot.devices)


@memoized
def memory_course(signals: Signals) -> Course | None:
    """The memory of the device with the highest peak; None without a snapshot."""
    of_devices = courses(signals)
    return max(of_devices, key=lambda course: course.peak_allocated_bytes, default=None)


def snapshot_capacity_bytes(signals: Signals) -> int | None:
    """The size of that device's memory; None if neither the user nor the profile says."""
    course = memory_course(signals)
    if course is None:
        return None
    chosen = signals.options.device
    if chosen is not None:
        return named_device(chosen).memory_bytes
    facts = device_facts(signals.trace, course.device) if signals.trace.devices else None
    return facts.memory_bytes if facts is not None else None
