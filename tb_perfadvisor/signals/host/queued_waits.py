"""What launched work waits for while the device is idle: its stream, event, call and annotation.

Work that was launched runs as soon as its stream allows it. If the device idles nevertheless, the
stream waits for something that is not among the device's recorded work: an event that the host or
another device sets, a copy by the network, a function on the host.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.core.causes import Cause
from tb_perfadvisor.signals.host.host_callbacks import host_callbacks
from tb_perfadvisor.signals.host.idle import annotated_idle
from tb_perfadvisor.signals.host.waits import awaited_collectives, slow_starts
from tb_perfadvisor.signals.launch.first_calls import first_calls
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import distinct, group_rows
from tb_perfadvisor.trace.intervals import (
    Intervals,
    join,
    last_before,
    minus,
    overlap_ns,
    total_ns,
)
from tb_perfadvisor.trace.names import named
from tb_perfadvisor.trace.tables import Int32, Int64

_STREAM_WAIT = regex(r"^(?:Stream Wait Event|event_wait)")
"""The names of Kineto and of Nsight Systems, and of PyTorch on other devices."""
_START_NS = 10_000
"""A device idles for some microseconds between two kernels, even if both are queued."""
_CALLS = (
    EventKind.LAUNCH,
    EventKind.RUNTIME,
    EventKind.SYNCHRONIZE,
    EventKind.ALLOCATE,
    EventKind.OPERATOR,
    EventKind.HOST_COLLECTIVE,
)


class QueuedWait(Struct, frozen=True):
    """Idle time with the same work queued in the same circumstances; empty texts if unknown."""

    stream: str
    event: str
    """The work that waits."""
    launched_by: str
    """The call that launched it."""
    host_call: str
    """The innermost call that the thread of the steps is in meanwhile."""
    annotation: str
    """The innermost annotation around the idle time."""
    count: int
    idle_ns: int


class QueuedWaits(Struct, frozen=True):
    """Idle time with work queued that nothing explains.

    Callbacks on the host, collectives, launches that reach the device late, what happens only once,
    and the start of each kernel are explanations.
    """

    intervals: Intervals
    waits: tuple[QueuedWait, ...]
    """The longest first."""
    after_stream_wait_ns: int | None = None
    """Idle time before work in front of which the program made the stream wait for an event; None
    if the profile has no waits of streams."""

    @property
    def total_ns(self) -> int:
        """All of the idle time."""
        return total_ns(self.intervals)


@memoized
def queued_waits(signals: Signals) -> QueuedWaits:
    """The idle time with work queued, by what waits."""
    trace, gaps, pieces = signals.trace, signals.attribution.idle, annotated_idle(signals)
    events = trace.events
    elsewhere = join(
        host_callbacks(signals).waits,
        awaited_collectives(signals),
        slow_starts(signals),
        first_calls(signals).idle,
    )
    queued = minus(signals.attribution.intervals[Cause.QUEUED], elsewhere)
    queued = queued[queued[:, 1] - queued[:, 0] >= _START_NS]
    inside = overlap_ns(queued, pieces.start_ns, pieces.end_ns)
    chosen = np.flatnonzero(inside > 0)
    gap = pieces.gap[chosen]
    event, launch = gaps.next_row[gap], gaps.launch_row[gap]
    middle = (
        np.maximum(pieces.start_ns[chosen], gaps.queued_from_ns[gap]) + pieces.end_ns[chosen]
    ) // 2
    host_call = _calls_at(signals, middle)
    columns = (
        np.where(event >= 0, events.track[event], -1),
        np.where(event >= 0, events.name[event], -1),
        np.where(launch >= 0, events.name[launch], -1),
        np.where(host_call >= 0, events.name[host_call], -1),
        pieces.name[chosen],
    )
    first, group = group_rows(*columns)
    idle_ns = np.bincount(group, weights=inside[chosen], minlength=len(first)).astype(np.int64)
    count = np.bincount(group, minlength=len(first))
    waits = []
    for index in np.argsort(-idle_ns, kind="stable").tolist():
        track, *names = (int(column[first[index]]) for column in columns)
        event_name, launched_by, call, annotation = map(trace.text, names)
        waits.append(
            QueuedWait(
                stream=trace.text(int(trace.tracks.label[track])) if track >= 0 else "",
                event=event_name,
                launched_by=launched_by,
                host_call=call,
                annotation=annotation,
                count=int(count[index]),
                idle_ns=int(idle_ns[index]),
            )
        )
    stream_waits = _stream_waits(signals)
    after_ns = None
    if len(stream_waits):
        after_ns = int(inside[chosen][_follow(signals, event, stream_waits)].sum())
    return QueuedWaits(queued, tuple(waits), after_ns)


def _stream_waits(signals: Signals) -> Int32:
    """Recorded waits of streams for events, each on the stream that waits."""
    trace, rows = signals.trace, signals.trace.rows(EventKind.DEVICE_SYNC)
    found: Int32 = rows[named(trace, rows, _STREAM_WAIT)]
    return found


def _follow(signals: Signals, event: Int32, stream_waits: Int32) -> NDArray[np.bool_]:
    """Whether a wait was put on the stream of each event, right before the event was launched."""
    events, rows = signals.trace.events, signals.device.rows
    launched_ns = np.where(
        events.launched_by >= 0, events.start_ns[events.launched_by], events.start_ns
    )
    follows = np.zeros(len(event), dtype=bool)
    for track in distinct(events.track[stream_waits]).tolist():
        waits_ns = events.start_ns[stream_waits[events.track[stream_waits] == track]]
        on_track = np.sort(launched_ns[rows[events.track[rows] == track]], kind="stable")
        places = np.flatnonzero((event >= 0) & (events.track[event] == track))
        if not len(places):
            continue
        at_ns = launched_ns[event[places]]
        slot = np.searchsorted(on_track, at_ns) - 1
        before_ns = np.where(slot >= 0, on_track[np.maximum(slot, 0)], -1)
        earlier = np.searchsorted(waits_ns, before_ns, side="right")
        follows[places] = np.searchsorted(waits_ns, at_ns) > earlier
    return follows


def _calls_at(signals: Signals, at_ns: Int64) -> Int32:
    """Rows of the innermost calls of the thread of the steps at some moments; -1 for none."""
    events, rows = signals.trace.events, signals.trace.rows(*_CALLS)
    rows = rows[events.track[rows] == signals.step_track]
    if len(rows) == 0:
        return np.full(len(at_ns), -1, dtype=np.int32)
    slot = last_before(events.start_ns[rows], at_ns)
    call = np.where(slot >= 0, rows[np.maximum(slot, 0)], -1)
    # The latest call before the moment may have returned, but not those around it.
    climbing = np.flatnonzero((call >= 0) & (events.end_ns[call] <= at_ns))
    while climbing.size:
        call[climbing] = events.parent[call[climbing]]
        climbing = climbing[call[climbing] >= 0]
        climbing = climbing[events.end_ns[call[climbing]] <= at_ns[climbing]]
    is_call = np.isin(events.kind[call], _CALLS)
    found: Int32 = np.where((call >= 0) & is_call, call, -1).astype(np.int32)
    return found
