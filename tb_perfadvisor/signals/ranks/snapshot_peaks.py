"""The peaks of all devices that the ranks' memory snapshots show."""

from __future__ import annotations

from msgspec import Struct

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.snapshots.memory_course import courses


class DevicePeak(Struct, frozen=True):
    """The most memory on one device, as one rank's process sees it."""

    rank: int | None
    device: int
    allocated_bytes: int
    reserved_bytes: int


@memoized
def snapshot_peaks(signals: Signals) -> tuple[DevicePeak, ...]:
    """The peaks of each rank's devices, in order of rank."""
    run = signals.run
    if run.summaries:
        return tuple(
            DevicePeak(source.rank, *peak)
            for source, summary in zip(run.sources, run.summaries, strict=True)
            for peak in summary.snapshot_peaks
        )
    return tuple(
        DevicePeak(trace.source.rank, *peak)
        for worker, trace in enumerate(run.traces)
        for peak in peaks_of(signals if worker == signals.worker else Signals(run, worker))
    )


def peaks_of(signals: Signals) -> tuple[tuple[int, int, int], ...]:
    """Device, peak of allocated and of reserved bytes, for each device of one rank's snapshot."""
    return tuple(
        (course.device, course.peak_allocated_bytes, course.peak_reserved_bytes)
        for course in courses(signals)
    )
