"""Collects what a timeline shows: the events of all ranks, and the time of causes and findings.

Everything is bounded. Of more events than `MAX_EVENTS`, the longest are stored, and the number of
the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.report.timeline.lanes import find_lanes
from tb_perfadvisor.report.timeline.stored_events import TimelineEvents
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.core.causes import Cause
from tb_perfadvisor.signals.ranks.ranks import ranks_of
from tb_perfadvisor.trace import Trace, TrackKind
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.intervals import EMPTY, Intervals
from tb_perfadvisor.trace.kinds import CAPTURED_KINDS
from tb_perfadvisor.trace.tables import Int32, Int64, UInt8

# 33 bytes per event: 66 MB in memory while its timeline is shown, and a few MB in the cache.
MAX_EVENTS = 2_000_000
# Of the other ranks together: their files are read once more, at about a million events a second.
MAX_EVENTS_OF_OTHERS = 1_000_000
# Per finding. A launch-bound finding in a long profile claims very many short gaps.
MAX_CLAIMS = 20_000
# Of all causes together; more than a recording of some ten steps has.
MAX_STRETCHES = 2_000_000

_CAUSES = tuple(Cause)


class _Events(Struct, frozen=True):
    """Events of one worker by row and start, with rows from 0."""

    columns: dict[str, NDArray[np.integer]]
    lanes: Int64
    """Of each track, 0 for a track without events; in the order of `tracks`."""
    tracks: Int64
    """Rows of the trace's `TrackTable`, in the order in which they are drawn."""
    left_out: int


class _Texts:
    """Texts by index; each is stored once."""

    def __init__(self) -> None:
        self._index_of: dict[str, int] = {}

    def indices(self, texts: Sequence[str], index: NDArray[np.integer]) -> Int32:
        """Indices here of texts by indices there; -1 stays -1."""
        found = np.full(len(texts) + 1, -1, dtype=np.int32)
        for at in distinct(index[index >= 0]).tolist():
            if texts[at]:
                found[at] = self._index_of.setdefault(texts[at], len(self._index_of))
        places: Int32 = found[index]
        return places

    def all(self) -> tuple[str, ...]:
        """The texts in order of their indices."""
        return tuple(self._index_of)


def collect_events(
    signals: Signals, claims: Sequence[Intervals] = (), *, max_events: int = MAX_EVENTS
) -> TimelineEvents:
    """Collect what the timeline of a capture shows.

    Args:
        signals: The reference worker.
        claims: The time that each of the report's findings claims.
        max_events: How many events of the reference worker to keep; of others, half as many at
            most.
    """
    texts = _Texts()
    shift_ns = _shifts(signals)
    workers = [
        (signals.worker, signals.trace, _events(signals.trace, signals, texts, max_events)),
        *(
            (worker, trace, _events(trace, None, texts, MAX_EVENTS_OF_OTHERS))
            for worker, trace in _others(signals)
        ),
    ]
    columns: dict[str, list[NDArray[np.integer]]] = {}
    lanes, rows = [], 0
    for worker, _, events in workers:
        moved = {
            "start_ns": events.columns["start_ns"] + shift_ns[worker],
            "row": events.columns["row"] + np.int32(rows),
        }
        for name, column in (events.columns | moved).items():
            columns.setdefault(name, []).append(column)
        lanes.append(events.lanes)
        rows += int(events.lanes.sum())
    joined = {name: np.concatenate(parts) for name, parts in columns.items()}
    tracks = [(worker, trace, track) for worker, trace, e in workers for track in e.tracks.tolist()]
    causes = _stretches(signals)
    longest = [_longest(intervals, MAX_CLAIMS) for intervals in claims]
    claimed = np.concatenate(longest) if longest else EMPTY
    steps = signals.steps
    return TimelineEvents(
        worker=signals.worker,
        start_ns_of_window=signals.attribution.window_start_ns,
        end_ns_of_window=signals.attribution.window_end_ns,
        whole_ns=int((joined["start_ns"] + joined["duration_ns"]).max(initial=0)),
        left_out=sum(events.left_out for _, _, events in workers),
        ranks_left_out=len(signals.run.traces) - len(workers),
        **joined,
        track_first_row=np.append(0, np.cumsum(np.concatenate(lanes))).astype(np.int32),
        track_is_device=np.array(
            [trace.tracks.kind[track] != TrackKind.HOST_THREAD for _, trace, track in tracks],
            dtype=bool,
        ),
        track_device=np.array(
            [trace.tracks.device[track] for _, trace, track in tracks], dtype=np.int32
        ),
        track_worker=np.array([worker for worker, _, _ in tracks], dtype=np.int32),
        worker_shift_ns=shift_ns,
        cause=causes[0],
        cause_start_ns=causes[1][:, 0],
        cause_end_ns=causes[1][:, 1],
        claim_finding=np.repeat(
            np.arange(len(longest), dtype=np.int32), [len(intervals) for intervals in longest]
        ),
        claim_start_ns=claimed[:, 0],
        claim_end_ns=claimed[:, 1],
        step_number=steps.number,
        step_start_ns=steps.start_ns,
        step_end_ns=steps.end_ns,
        texts=texts.all(),
        track_label=tuple(trace.text(trace.tracks.label[track]) for _, trace, track in tracks),
        track_process=tuple(trace.text(trace.tracks.process[track]) for _, trace, track in tracks),
        causes=tuple(cause.value for cause in _CAUSES),
    )


def _shifts(signals: Signals) -> Int64:
    """What to add to each worker's times to get those of the reference worker's clock.

    Workers that were recorded at other times, or whose clocks say so, are drawn from the same
    beginning.
    """
    if len(signals.run.traces) == 1:
        return np.zeros(1, dtype=np.int64)
    begin_ns = ranks_of(signals).clocks.begin_ns
    shift_ns = begin_ns - begin_ns[signals.worker]
    return np.where(np.abs(shift_ns) <= signals.trace.duration_ns, shift_ns, 0)


def _others(signals: Signals) -> Iterator[tuple[int, Trace]]:
    """The other workers with their traces, as many as the bound of their events allows."""
    if len(signals.run.traces) == 1:
        return
    room = MAX_EVENTS_OF_OTHERS
    for worker, summary in enumerate(ranks_of(signals).summaries):
        if worker == signals.worker:
            continue
        room -= summary.events
        if room < 0:
            return
        yield worker, signals.run.traces[worker]


def _events(trace: Trace, signals: Signals | None, texts: _Texts, max_events: int) -> _Events:
    """The events of a worker; modules and lines only with its signals."""
    events = trace.events
    lane = find_lanes(events.start_ns, events.end_ns, events.parent, events.track)
    happened = rows = np.flatnonzero(~is_in(events.kind, CAPTURED_KINDS))
    if rows.size > max_events:
        duration_ns = events.duration_ns[rows]
        longest = np.argpartition(duration_ns, rows.size - max_events)[-max_events:]
        rows = rows[np.sort(longest)]
    lanes = np.zeros(len(trace.tracks), dtype=np.int64)
    np.maximum.at(lanes, events.track[rows], lane[rows] + 1)
    tracks = _in_order(trace, lanes, -1 if signals is None else signals.step_track)
    first_row = np.zeros(len(trace.tracks), dtype=np.int64)
    first_row[tracks] = np.cumsum(lanes[tracks]) - lanes[tracks]
    row = (first_row[events.track[rows]] + lane[rows]).astype(np.int32)
    # Rows of the trace are in order of start already.
    order = np.argsort(row, kind="stable")
    kept = rows[order]
    unknown = np.full(kept.size, -1, dtype=np.int32)
    module, line = unknown, unknown
    if signals is not None:
        module, line = _origins(signals, kept, texts)
    return _Events(
        columns={
            "start_ns": events.start_ns[kept],
            "duration_ns": events.duration_ns[kept],
            "row": row[order],
            "kind": events.kind[kept],
            "name": texts.indices(trace.strings, events.name[kept]),
            "module": module,
            "line": line,
        },
        lanes=lanes[tracks],
        tracks=tracks,
        left_out=happened.size - rows.size,
    )


def _in_order(trace: Trace, lanes: Int64, step_track: int) -> Int64:
    """Tracks with events: the thread of the steps, devices, other threads; the busiest first."""
    events, tracks = trace.events, trace.tracks
    outer = events.parent < 0
    busy_ns = np.bincount(
        events.track[outer], weights=events.duration_ns[outer], minlength=len(tracks)
    )
    is_device = tracks.kind != TrackKind.HOST_THREAD
    group = np.where(is_device, tracks.kind.astype(np.int64), len(TrackKind))
    if step_track >= 0:
        group[step_track] = 0
    order: Int64 = np.lexsort((-busy_ns, tracks.device, group))
    return order[lanes[order] > 0]


def _origins(signals: Signals, rows: Int64, texts: _Texts) -> tuple[Int32, Int32]:
    """The module and the source line of each event, also those of XLA's operations."""
    trace, origins = signals.trace, signals.origins
    module = texts.indices(origins.names, origins.module[rows])
    line = texts.indices(origins.lines, origins.line[rows])
    operation = trace.operations(rows.astype(np.int32))
    has_operation = operation >= 0
    if has_operation.any():
        known = operation[has_operation]
        path = texts.indices(trace.strings, trace.hlo.path[known])
        source = texts.indices(trace.strings, trace.hlo.source_line[known])
        module[has_operation] = np.where(path >= 0, path, module[has_operation])
        line[has_operation] = np.where(source >= 0, source, line[has_operation])
    return module, line


def _stretches(signals: Signals) -> tuple[UInt8, Intervals]:
    """The cause of each stretch of time, and its intervals; the longest if there are too many."""
    parts = [signals.attribution.intervals[cause] for cause in _CAUSES]
    cause = np.repeat(np.arange(len(parts), dtype=np.uint8), [len(part) for part in parts])
    intervals = np.concatenate(parts)
    if len(intervals) <= MAX_STRETCHES:
        return cause, intervals
    length = intervals[:, 1] - intervals[:, 0]
    rows = np.sort(np.argpartition(length, len(length) - MAX_STRETCHES)[-MAX_STRETCHES:])
    return cause[rows], intervals[rows]


def _longest(intervals: Intervals, count: int) -> Intervals:
    """The longest intervals, in their original order."""
    if len(intervals) <= count:
        return intervals
    rows = np.argpartition(intervals[:, 1] - intervals[:, 0], len(intervals) - count)[-count:]
    longest: Intervals = intervals[np.sort(rows)]
    return longest
