"""Launches and device time that a recording lost, and compile time in it."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.core.causes import Cause
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.recording.hints import recompiled
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.soundness.lost import LAUNCH, is_captured, unanswered_launches
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.event_names import named
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, clip, total_ns, union

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
    busy = union(events.start_ns[rows], events.end_ns[rows])
    if len(steps) >= MIN_REPEATS and total_ns(
        clip(busy, int(steps.host_end_ns[0]), int(steps.host_end_ns[-1]))
    ):
        return EMPTY
    return clip(busy, steps.window_start_ns, steps.window_end_ns)
