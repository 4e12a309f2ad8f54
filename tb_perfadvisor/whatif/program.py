"""The parts of the program in the used window: lines of host work, waits, and device work.

The dependency graph is made of these parts. Device work belongs to the window in which it was
launched. Work that was already queued when the window began does not belong to it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.soundness.waits import waiting_calls
from tb_perfadvisor.trace import BUSY_KINDS, EventKind, Trace, TrackKind
from tb_perfadvisor.trace.integer_groups import (
    distinct,
    group_rows,
    is_in,
    places_by_value,
    quantile,
    row_mask,
)
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, clip, intersect, join, total_ns
from tb_perfadvisor.trace.tables import Int32, Int64

LINKED_SHARE = 0.98
"""Device work without a known launch only follows its stream. With more of it than this allows, the
host's part is unknown."""
STEP_LINE_SHARE = 0.98
"""Launches by threads that do not take turns with the thread of the steps cannot be replayed."""

READY_SHARE = 0.01
"""Share of a step. Fetching a batch that is ready takes less."""

_MAX_THREADS = 256
"""Each thread is compared with each line of threads before it. Programs launch from a few threads,
or from one per device."""
_MAX_PAIRS = 5_000_000
"""Each wait may depend on each stream. A pair takes up to 100 bytes of memory and a microsecond.
Real programs have a few dozen streams, and thousands of waits."""
_MAX_COMPARED = 200_000_000
"""Each item of work is compared with each stream, which takes ten nanoseconds for a pair."""

_USUAL_QUANTILE = 0.1
"""Of the launches by their length: where the host runs far ahead, most of them may be held."""
_LAUNCH_NS = 20_000
"""A recorded launch takes 5 to 20 microseconds. In a short recording, all of them may be held."""
_LEAST_QUEUED = 100
"""No queue that holds fewer pieces of work is full."""
_FULL_SHARE = 0.9
"""Of the most that a stream queued: other commands, such as records of events, take places, too."""

NEVER = -(1 << 60)
"""Earlier than anything."""

# torch/utils/data/dataloader.py: the loader with worker processes.
_LOADS_AHEAD = regex(r"_MultiProcessingDataLoaderIter")
_STREAM_WAIT = regex(r"^(cuda|cu|hip)StreamWaitEvent")


class Program(Struct, frozen=True):
    """The parts. All columns of rows are in order of start."""

    start_ns: int
    """Start of the window, on the host."""
    end_ns: int
    lines: tuple[tuple[int, ...], ...]
    """Tracks that take turns; the first line runs the steps."""
    line_of: Int32
    """The line of each track of the trace; -1 for threads that neither launch nor wait."""
    work: Int32
    """Device work launched in the window. A little work without a known launch may be missing."""
    launch: Int32
    """The call that launched each item of `work`."""
    stream: Int32
    """The number of the stream of each item of `work`."""
    tail_ns: Int64
    """Per stream, when the last work before the window ended; `NEVER` if there was none."""
    waits: Int32
    """Calls that wait for the device."""
    held: Int32
    """Launches that had to wait for room in a full queue, in order."""
    held_ns: Int64
    """How long each of them waited."""
    stream_waits: Int32
    """Calls that make a stream wait for another stream."""
    batches: Int32
    """Fetches that waited for a batch that loading processes were still making."""
    is_one_run: bool
    """Whether the window is the whole profile, and not steps that would run on."""


class NotReplayable(Struct, frozen=True):
    """Why a profile cannot be replayed."""

    reason: str


HOST_HIDDEN = NotReplayable("what the host does while the device works was not recorded")
TOO_MANY_THREADS = NotReplayable("too many threads launch device work or wait for it")
TOO_MANY_STREAMS = NotReplayable("the work is spread over too many streams")


def find_program(signals: Signals) -> Program | NotReplayable:
    """Find the parts of the program in the used window, or why they cannot be told apart."""
    trace, steps, timeline = signals.trace, signals.steps, signals.device
    events = trace.events
    if timeline.index is None:
        return NotReplayable("the profile has no device events")
    if signals.step_track < 0:
        return NotReplayable("the profile has no host events")
    start, end = _host_window(signals)
    work = _work(signals)
    launch = events.launched_by[work]
    launched_at = np.where(launch >= 0, events.start_ns[launch], events.start_ns[work])
    inside = (launched_at >= start) & (launched_at < end)
    linked = inside & (launch >= 0)
    duration_ns = events.duration_ns[work]
    if not linked.any():
        return NotReplayable("no launch of device work was recorded in the used steps")
    if int(duration_ns[linked].sum()) < LINKED_SHARE * int(duration_ns[inside].sum()):
        return NotReplayable("device events are not linked to their launches")
    is_launched = launch >= 0
    held, held_ns = held_launches(trace, work[is_launched], launch[is_launched])
    work, launch = work[linked], launch[linked]
    is_inside = is_in(held, launch)
    waits = waiting_calls(trace)
    waits = waits[(events.start_ns[waits] >= start) & (events.start_ns[waits] < end)]
    calls = distinct(launch)
    by_track = np.bincount(events.track[calls], minlength=len(trace.tracks))
    by_track += np.bincount(events.track[waits], minlength=len(trace.tracks))
    if np.count_nonzero(by_track) > _MAX_THREADS:
        return TOO_MANY_THREADS
    streams = distinct(events.track[work])
    stream_waits = _stream_waits(trace, start, end)
    if len(streams) * (len(waits) + len(stream_waits)) > _MAX_PAIRS or (
        len(streams) * len(work) > _MAX_COMPARED
    ):
        return TOO_MANY_STREAMS
    lines = _lines(signals, by_track, start, end)
    line_of = np.full(len(trace.tracks), -1, dtype=np.int32)
    for number, line in enumerate(lines):
        line_of[list(line)] = number
    on_step_line = int((line_of[events.track[calls]] == 0).sum())
    if on_step_line < STEP_LINE_SHARE * len(calls):
        return NotReplayable("threads beside the one that runs the steps launch device work")
    first, stream = group_rows(events.track[work])
    return Program(
        start_ns=start,
        end_ns=end,
        lines=lines,
        line_of=line_of,
        work=work,
        launch=launch,
        stream=stream.astype(np.int32),
        tail_ns=_tails(trace, work[first]),
        waits=waits,
        held=held[is_inside],
        held_ns=held_ns[is_inside],
        stream_waits=stream_waits,
        batches=_batches(signals, start, end),
        is_one_run=len(steps) == 0,
    )


def held_launches(trace: Trace, work: Int32, launch: Int32) -> tuple[Int32, Int64]:
    """Launches that took long because the queue of their stream was full, and how long they waited.

    Such a call returns when the device has made room, so its length says nothing about the host.
    CUDA queues about a thousand pieces of work for a stream.
    """
    events = trace.events
    usual_ns = min(quantile(events.duration_ns[launch], _USUAL_QUANTILE), _LAUNCH_NS)
    is_long = events.duration_ns[launch] > 2 * usual_ns
    held = [np.empty(0, dtype=np.int32)]
    for _, places in places_by_value(events.track[work]) if is_long.any() else ():
        called_ns = events.start_ns[launch[places]]
        order = np.argsort(called_ns, kind="stable")
        begun = np.searchsorted(
            np.sort(events.start_ns[work[places]], kind="stable"), called_ns[order]
        )
        queued = np.arange(len(order)) - begun
        is_full = queued >= max(_FULL_SHARE * int(queued.max()), _LEAST_QUEUED)
        held.append(launch[places][order][is_full & is_long[places][order]])
    rows = distinct(np.concatenate(held))
    return rows, events.duration_ns[rows] - int(usual_ns)


def _host_window(signals: Signals) -> tuple[int, int]:
    """The used window on the launching thread.

    Without steps, it begins on the host where the first work is launched, or with the wait for its
    batch.
    """
    steps, events = signals.steps, signals.trace.events
    if len(steps):
        return int(steps.host_start_ns[0]), int(steps.host_end_ns[-1])
    start, end = steps.window_start_ns, steps.window_end_ns
    rows = signals.device.rows
    rows = rows[events.launched_by[rows] >= 0]
    at, launched = events.start_ns[rows], events.start_ns[events.launched_by[rows]]
    first, after = np.searchsorted(at, (start, end))
    begun = min(int(launched[first]), start) if first < len(rows) else start
    if after < len(rows):
        return begun, int(launched[after])
    # The host may wait for the last work of a profile, or may have continued long ago.
    return begun, max(end, int(launched[-1]) + 1 if len(rows) else end)


def _work(signals: Signals) -> Int32:
    """Rows of the work of all devices, without containers, in order of start.

    All devices of an XLA program run the same operations, so a change that is described by the
    events of one device applies to all of them: only that device is replayed.
    """
    trace = signals.trace
    is_stream = trace.tracks.kind == TrackKind.DEVICE_STREAM
    if len(trace.hlo.name):
        is_stream &= trace.tracks.device == signals.device.index
    rows = trace.rows(*BUSY_KINDS)
    rows = rows[is_stream[trace.events.track[rows]]]
    work: Int32 = rows[~row_mask(len(trace.events), signals.device.containers)[rows]]
    return work


def _tails(trace: Trace, first_work: Int32) -> Int64:
    """When the work before the window ended on each stream, by the stream's first work in it."""
    events = trace.events
    # Annotations lie on streams, too, and end with the work that they enclose.
    rows = trace.rows(*BUSY_KINDS)
    first_of_track = np.zeros(len(trace.tracks), dtype=np.int32)
    first_of_track[events.track[first_work]] = first_work
    before = rows[rows < first_of_track[events.track[rows]]]
    end_of_track = np.full(len(trace.tracks), NEVER, dtype=np.int64)
    np.maximum.at(end_of_track, events.track[before], events.end_ns[before])
    tails: Int64 = np.minimum(end_of_track[events.track[first_work]], events.start_ns[first_work])
    return tails


def _lines(
    signals: Signals, by_track: Int64, start_ns: int, end_ns: int
) -> tuple[tuple[int, ...], ...]:
    order = np.argsort(-by_track, kind="stable").tolist()
    tracks = [signals.step_track]
    tracks += [track for track in order if by_track[track] > 0 and track != tracks[0]]
    return turn_taking(signals.trace, tracks, start_ns, end_ns)


def _batches(signals: Signals, start_ns: int, end_ns: int) -> Int32:
    """Fetches of the step's thread that took long although processes load ahead."""
    trace, events, steps = signals.trace, signals.trace.events, signals.steps
    rows = trace.rows(EventKind.INPUT_WAIT)
    rows = rows[(events.start_ns[rows] >= start_ns) & (events.end_ns[rows] <= end_ns)]
    rows = rows[events.track[rows] == signals.step_track]
    has_waited = events.duration_ns[rows] > READY_SHARE * steps.window_ns / steps.count
    names = events.name[rows]
    preloaded = [n for n in distinct(names).tolist() if _LOADS_AHEAD.search(trace.strings[n])]
    late: Int32 = rows[has_waited & is_in(names, preloaded)]
    # Loading that limits the steps delays the thread again and again. A single late batch does not.
    if events.duration_ns[late].sum() <= READY_SHARE * steps.window_ns:
        return late[:0]
    return late


def _stream_waits(trace: Trace, start_ns: int, end_ns: int) -> Int32:
    rows = trace.rows(EventKind.RUNTIME, EventKind.LAUNCH)
    events = trace.events
    rows = rows[(events.start_ns[rows] >= start_ns) & (events.start_ns[rows] < end_ns)]
    names = events.name[rows]
    matching = [n for n in distinct(names).tolist() if _STREAM_WAIT.match(trace.strings[n])]
    return rows[is_in(names, matching)]


OVERLAP_SHARE = 0.05
"""Threads that hand over still overlap a little: one returns while the other continues."""

_ACTIVE = (
    EventKind.OPERATOR,
    EventKind.LAUNCH,
    EventKind.SYNCHRONIZE,
    EventKind.ALLOCATE,
    EventKind.RUNTIME,
    EventKind.INPUT_WAIT,
    EventKind.COMPILE,
)


def turn_taking(
    trace: Trace, tracks: Sequence[int], start_ns: int, end_ns: int
) -> tuple[tuple[int, ...], ...]:
    """Split tracks into lines of host work: the threads that take turns.

    Autograd runs the backward pass on its own thread while the calling thread waits, and files do
    not record that hand-over. Threads whose work does not overlap are assumed to hand over to one
    another, so that a delay of one delays the others.

    The first track is that of the thread that runs the steps; then come those with the most
    launches.
    """
    active = _activity(trace, tracks, start_ns, end_ns)
    left = list(tracks)
    lines = []
    while left:
        line, others = [left[0]], []
        busy = active[left[0]]
        for track in left[1:]:
            overlap = total_ns(intersect(active[track], busy))
            if overlap <= OVERLAP_SHARE * min(total_ns(busy), total_ns(active[track])):
                line.append(track)
                busy = join(busy, active[track])
            else:
                others.append(track)
        lines.append(tuple(line))
        left = others
    return tuple(lines)


def _activity(
    trace: Trace, tracks: Sequence[int], start_ns: int, end_ns: int
) -> dict[int, Intervals]:
    """When each thread runs leaf events. An outer event may be waiting for another thread."""
    events, rows = trace.events, trace.rows(*_ACTIVE)
    rows = rows[is_in(events.track[rows], tracks)]
    holds = np.zeros(len(events) + 1, dtype=np.bool_)
    holds[events.parent[rows]] = True
    rows = rows[~holds[rows]]
    found = dict.fromkeys(tracks, EMPTY)
    for track, places in places_by_value(events.track[rows]):
        leaves = rows[places]
        busy = events.spans(leaves)
        found[track] = clip(busy, start_ns, end_ns)
    return found
