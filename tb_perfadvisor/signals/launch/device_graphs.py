"""Graphs of device work (CUDA, HIP) that a program records once and replays with one launch."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.launch.compiled_regions import compiled_regions
from tb_perfadvisor.signals.launch.delays import LONGEST_LAUNCH_GAP_NS
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct, places_by_value, row_mask, unique_inverse
from tb_perfadvisor.trace.intervals import (
    Intervals,
    clip,
    intersect,
    join,
    overlap_ns,
    union,
)
from tb_perfadvisor.trace.names import rows_named
from tb_perfadvisor.trace.tables import Int32, Int64

# CUDA and HIP, runtime and driver API, "Graph Management" and "Stream Management".
_REPLAY = regex(r"^(?:cuda|cu|hip)GraphLaunch(?:_ptsz)?$")
_BEGIN_CAPTURE = regex(r"^(?:cuda|cu|hip)StreamBeginCapture")
_END_CAPTURE = regex(r"^(?:cuda|cu|hip)StreamEndCapture")
_BUILD = regex(r"^(?:cuda|cu|hip)Graph(?:Instantiate|Upload|ExecUpdate)")
_MOST_LAUNCHES = 0.5
"""What is launched before a replay prepares its inputs if it has fewer than half as many launches
as the replay has events. More are a part of the step that is not in a graph."""


class GraphReplays(Struct, frozen=True):
    """Launches of graphs whose work begins in the used window, by start; shape (replays,)."""

    row: Int32
    """The launch call."""
    event_count: Int64
    """Number of device events that each launched."""

    def __len__(self) -> int:
        """Number of replays."""
        return len(self.row)


class ReplayPreparation(Struct, frozen=True):
    """Replays with few launches before them, and the idle time before them; shape (replays,)."""

    row: Int32
    """The launch calls of the replays."""
    idle_ns: Int64
    """Idle time before each while the host prepares it."""
    launches: Int64
    """Number of kernels and copies that were launched one by one before each, since the replay
    before it."""
    is_first: NDArray[np.bool_]
    """Whether no earlier replay of this thread was recorded."""
    idle: Intervals


class GraphCaptures(Struct, frozen=True):
    """Graphs that are recorded or built in the used window. That happens once for each."""

    count: int
    capturing: Intervals
    """When a stream is captured, or a graph is built from what was captured."""
    setting_up: Intervals
    """The same with the calls of compiled code around it, which run the code first to warm up."""


@memoized
def graph_replays(signals: Signals) -> GraphReplays:
    """The replays of graphs in the used window."""
    events, window = signals.trace.events, signals.attribution
    start_ns, end_ns = window.window_start_ns, window.window_end_ns
    rows = signals.device.rows
    rows = rows[in_graphs(signals.trace, rows)]
    rows = rows[(events.end_ns[rows] > start_ns) & (events.start_ns[rows] < end_ns)]
    launch, of_row = unique_inverse(events.launched_by[rows])
    return GraphReplays(row=launch, event_count=np.bincount(of_row, minlength=len(launch)))


def runs_graphs(signals: Signals) -> bool:
    """Whether the program replays graphs in the used window."""
    return len(graph_replays(signals)) > 0


def in_graphs(trace: Trace, rows: Int32) -> NDArray[np.bool_]:
    """Whether device events are part of a graph."""
    launch = trace.events.launched_by[rows]
    replays = row_mask(len(trace.events), rows_named(trace, _REPLAY, EventKind.LAUNCH))
    return (launch >= 0) & replays[launch]


@memoized
def replay_preparation(signals: Signals) -> ReplayPreparation:
    """Idle time before replays whose inputs the host prepares meanwhile.

    It ends with a replay, or with one of a few kernels and copies that are launched before it.
    """
    events, gaps = signals.trace.events, signals.attribution.idle
    replays = graph_replays(signals)
    launches = distinct(events.launched_by[signals.device.rows])
    launches = launches[launches >= 0]
    is_waited_for = (gaps.launch_row >= 0) & ~gaps.is_queued
    is_waited_for &= gaps.end_ns - gaps.start_ns <= LONGEST_LAUNCH_GAP_NS
    before = np.full(len(gaps.start_ns), -1, dtype=np.int64)
    count = np.zeros(len(replays), dtype=np.int64)
    is_first = np.zeros(len(replays), dtype=bool)
    launches_by_track = {
        track: launches[places] for track, places in places_by_value(events.track[launches])
    }
    gaps_waited_for = np.flatnonzero(is_waited_for)
    gaps_by_track = {
        track: gaps_waited_for[places]
        for track, places in places_by_value(events.track[gaps.launch_row[gaps_waited_for]])
    }
    for track, of_track in places_by_value(events.track[replays.row]):
        on_track = launches_by_track.get(track, launches[:0])
        at = np.searchsorted(on_track, replays.row[of_track])
        count[of_track] = np.diff(at, prepend=-1) - 1
        is_first[of_track[:1]] = True
        here = gaps_by_track.get(track, gaps_waited_for[:0])
        following = np.searchsorted(replays.row[of_track], gaps.launch_row[here])
        found = following < len(of_track)
        before[here[found]] = of_track[following[found]]
    few = count < _MOST_LAUNCHES * replays.event_count
    chosen = (before >= 0) & few[before] if len(replays) else before >= 0
    start_ns, end_ns, replay = gaps.start_ns[chosen], gaps.end_ns[chosen], before[chosen]
    idle = intersect(signals.host_idle, union(start_ns, end_ns))
    weights = overlap_ns(idle, start_ns, end_ns)
    idle_ns = np.bincount(replay, weights, len(replays)).astype(np.int64)
    return ReplayPreparation(
        row=replays.row[few],
        idle_ns=idle_ns[few],
        launches=count[few],
        is_first=is_first[few],
        idle=idle,
    )


@memoized
def graph_captures(signals: Signals) -> GraphCaptures:
    """When graphs were recorded and built."""
    trace, window = signals.trace, signals.attribution
    events = trace.events
    kinds = (EventKind.LAUNCH, EventKind.RUNTIME)
    begun, ended = (
        rows_named(trace, _BEGIN_CAPTURE, *kinds),
        rows_named(trace, _END_CAPTURE, *kinds),
    )
    built = rows_named(trace, _BUILD, *kinds)
    # A capture whose end was not recorded lasts at least as long as the call that begins it.
    until_ns = np.array(events.end_ns[begun])
    ended_by_track = {
        track: ended[places] for track, places in places_by_value(events.track[ended])
    }
    for track, of_track in places_by_value(events.track[begun]):
        ends_ns = events.end_ns[ended_by_track.get(track, ended[:0])]
        following = np.searchsorted(ends_ns, events.start_ns[begun[of_track]])
        found = following < len(ends_ns)
        until_ns[of_track[found]] = ends_ns[following[found]]
    capturing = union(events.start_ns[begun], until_ns)
    building = events.spans(built)
    inside = clip(join(capturing, building), window.window_start_ns, window.window_end_ns)
    regions = compiled_regions(signals).row
    captures = overlap_ns(capturing, events.start_ns[regions], events.end_ns[regions]) > 0
    regions = regions[captures]
    return GraphCaptures(
        count=max(len(begun), len(built)) if len(inside) else 0,
        capturing=inside,
        setting_up=join(inside, events.spans(regions)),
    )
