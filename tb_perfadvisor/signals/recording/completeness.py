"""Launches and device time that a recording lost, and compile time in it."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.core.causes import Cause
from tb_perfadvisor.signals.launch.device_graphs import graph_captures
from tb_perfadvisor.signals.launch.first_calls import first_calls
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.recording.compile_log import is_only_log
from tb_perfadvisor.signals.recording.hints import recompiled
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.soundness.lost import LAUNCH, is_captured, unanswered_launches
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, clip, join, total_ns
from tb_perfadvisor.trace.names import named

MIN_REPEATS = 3
"""With at least three steps, repeated compiling can be told from warm-up."""


_AT_END = 0.95
"""The device may run streams in another order than the host launches."""


class LostLaunches(Struct, frozen=True):
    """Kernel launches in the used window, and those without a device event."""

    lost: int = 0
    launched: int = 0
    are_last: bool = False
    """Whether the lost ones are the last of the recording: it ended before the device ran them."""


UNKNOWN_SHARE = 0.05
"""If the device worked for longer on what was not recorded, its figures are off by as much."""


def not_recorded_share(signals: Signals) -> float:
    """Share of the window in which the device worked, or may have, on what was not recorded."""
    return signals.attribution.share(Cause.NOT_RECORDED) or 0.0


def knows_device_time(signals: Signals) -> bool:
    """Whether what the device did is known for nearly all of the window."""
    return not_recorded_share(signals) < UNKNOWN_SHARE


@memoized
def lost_launches(signals: Signals) -> LostLaunches:
    """Kernel launches in the used window without a device event.

    Launches into a stream that is being captured run later, with the graph, so they don't count.
    Nor do other calls (copies within the host, empty fills), which may have no event. Partial steps
    are not used, so launches that are lost at the end of a recording don't count.
    """
    trace = signals.trace
    events = trace.events
    if signals.device.index is None or trace.totals is not None:
        return LostLaunches()
    rows = signals.steps.own(trace.rows(EventKind.LAUNCH))
    rows = rows[named(trace, rows, LAUNCH)]
    linked = np.flatnonzero(events.launched_by >= 0)
    if len(rows) == 0 or len(linked) == 0:
        return LostLaunches()
    rows = rows[~is_captured(trace, rows)]
    lost = signals.steps.own(unanswered_launches(trace))
    last_seen_ns = int(events.start_ns[events.launched_by[linked[-1]]])
    after = int((events.start_ns[lost] > last_seen_ns).sum())
    return LostLaunches(len(lost), len(rows), len(lost) > 0 and after >= _AT_END * len(lost))


@memoized
def compiling(signals: Signals) -> Intervals:
    """When the used window compiles or imports because it is warm-up.

    Empty if there are several steps and a later one compiles too, or if looks over the whole run
    found it compiling again and again: then the program recompiles, which is not a problem of the
    recording.
    """
    if recompiled(signals.trace.facts.lines):
        return EMPTY
    trace, steps = signals.trace, signals.steps
    events, rows = trace.events, trace.rows(EventKind.COMPILE, EventKind.PYTHON)
    names = events.name[rows]
    is_compile = events.kind[rows] == EventKind.COMPILE
    is_import = is_in(
        names,
        [
            name
            for name in distinct(names[~is_compile]).tolist()
            if trace.strings[name].startswith("<frozen importlib._bootstrap>")
        ],
    )
    rows = rows[is_compile | is_import]
    busy = events.spans(rows)
    if len(steps) >= MIN_REPEATS and total_ns(
        clip(busy, int(steps.host_end_ns[0]), int(steps.host_end_ns[-1]))
    ):
        return EMPTY
    return clip(busy, steps.window_start_ns, steps.window_end_ns)


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
