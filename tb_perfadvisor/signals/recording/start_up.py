"""Whether a profile shows a program that starts up, in place of one at work."""

from __future__ import annotations

from tb_perfadvisor.signals.core.causes import Cause
from tb_perfadvisor.signals.launch.device_graphs import graph_captures
from tb_perfadvisor.signals.launch.first_calls import first_calls
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.recording.compile_log import is_only_log
from tb_perfadvisor.signals.recording.completeness import compiling
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, clip, join, total_ns

MOST_SHARE = 0.5
"""If most of the time is spent on what happens once, the rest is a poor sample of the program."""
MINIMUM_SHARE = 1 / 3
"""If a third of the time is spent on what happens once, all shares of the rest are off by half."""
_REPEATS = 2
"""With two steps, what happens in each is not start-up."""


@memoized
def start_up(signals: Signals) -> Intervals:
    """The part of the used window that is start-up.

    It is spent on compiling, importing, first calls and, within a single step, on capturing graphs
    and on allocating device memory, which a caching allocator does only once.
    """
    window = signals.attribution
    is_single = signals.steps.count < _REPEATS
    allocating = window.intervals[Cause.ALLOCATING] if is_single else EMPTY
    capturing = graph_captures(signals).setting_up if is_single else EMPTY
    capturing = clip(capturing, window.window_start_ns, window.window_end_ns)
    return join(compiling(signals), first_calls(signals).idle, allocating, capturing)


def is_start_up(signals: Signals, expected_ns: int = 0) -> bool:
    """Whether most of the used window is start-up, or a third of it and more than can be saved.

    All findings are expected to save `expected_ns`.
    """
    if is_only_log(signals):
        return False
    once_ns, window_ns = total_ns(start_up(signals)), signals.attribution.window_ns
    if once_ns > MOST_SHARE * window_ns:
        return True
    return once_ns > MINIMUM_SHARE * window_ns and once_ns > expected_ns
