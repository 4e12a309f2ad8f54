"""Whether a profile shows a program that starts up, in place of one at work."""

from __future__ import annotations

from tb_perfadvisor.signals.core.causes import Cause
from tb_perfadvisor.signals.launch.first_calls import first_calls
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.recording.compile_log import is_only_log
from tb_perfadvisor.signals.recording.completeness import compiling
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, join, total_ns

MINIMUM_SHARE = 0.5
"""If most of the time is spent on what happens once, the rest is a poor sample of the program."""
_REPEATS = 2
"""With two steps, what happens in each is not start-up."""


@memoized
def start_up(signals: Signals) -> Intervals:
    """The part of the used window that is start-up.

    It is spent on compiling, importing, first calls and, within a single step, on allocating device
    memory, which a caching allocator does only once.
    """
    window = signals.attribution
    is_single = signals.steps.count < _REPEATS
    allocating = window.intervals[Cause.ALLOCATING] if is_single else EMPTY
    return join(compiling(signals), first_calls(signals).idle, allocating)


def is_start_up(signals: Signals) -> bool:
    """Whether most of the used window is start-up."""
    if is_only_log(signals):
        return False
    return total_ns(start_up(signals)) > MINIMUM_SHARE * signals.attribution.window_ns
