"""What is known about the soundness of a trace: what was repaired, and what it lacks."""

from __future__ import annotations

from msgspec import Struct

from tb_perfadvisor.trace.intervals import EMPTY, Intervals


class Soundness(Struct, frozen=True):
    """What checks of a trace against physics found; see the package `soundness`."""

    work: int | None = None
    """Kernels and collectives, or operators if no device worked; None if it was not counted."""
    shortened: int = 0
    """Device events that ended too late, and were shortened."""
    shortened_ns: int = 0
    """The time that those events have now. Their true ends are not known exactly."""
    clock_shift_ns: int = 0
    """By how much the clock of a device was ahead of the host's; the largest of all devices."""
    not_recorded: Intervals = EMPTY
    """When devices worked, or may have worked, on something that the trace lacks."""
    proven: Intervals = EMPTY
    """The part of it in which a call waited for that work."""
    unanswered: int = 0
    """Launches of kernels and graphs whose device events are missing."""


SOUND = Soundness()
