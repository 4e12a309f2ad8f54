"""Events of the timeline, and excerpts.

Everything is bounded. Of more events than `MAX_EVENTS`, the longest are stored, and the number of
the others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.report.timeline.window import TimelineEvents
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.core.causes import Cause
from tb_perfadvisor.signals.device.device_work import operators_of
from tb_perfadvisor.signals.ranks.ranks import ranks_of
from tb_perfadvisor.trace import CopyDirection, Trace, TrackKind
from tb_perfadvisor.trace.integer_groups import (
    distinct,
    group_rows,
    is_in,
    places_by_value,
    row_mask,
    unique_inverse,
)
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, intersect, single
from tb_perfadvisor.trace.kinds import CAPTURED_KINDS, EventKind
from tb_perfadvisor.trace.nesting import depths
from tb_perfadvisor.trace.tables import Int32, Int64, UInt8
from tb_perfadvisor.units import format_bytes

MAX_LANES = 1_024
"""Per track: as deep as calls in a trace are nested. Of more events at the same moment, which only
asynchronous spans are, the last lane has the rest."""
_TOLERANCE = 10
"""Clocks are rounded: neighbors may overlap by a tenth of the shorter one."""


def find_lanes(start_ns: Int64, end_ns: Int64, parent: Int32, track: Int32) -> Int32:
    """The lane of each event on its track: below all events around it.

    Events that overlap without one inside the other, such as asynchronous spans, get lanes of their
    own on their track.

    All columns have shape (n,). Events are sorted by start, longest first on ties. `parent` is the
    event that encloses each one on its track, or -1. Lanes count from 0.
    """
    lane: Int32 = depths(parent)
    order = np.lexsort((start_ns, lane, track))
    before, after = order[:-1], order[1:]
    shorter_ns = np.minimum(end_ns[before] - start_ns[before], end_ns[after] - start_ns[after])
    overlap_ns = end_ns[before] - start_ns[after]
    is_covered = (
        (track[before] == track[after])
        & (lane[before] == lane[after])
        & (overlap_ns * _TOLERANCE > shorter_ns)
        & (overlap_ns > 0)
    )
    crowded = distinct(track[after[is_covered]])
    for value, rows in places_by_value(track) if crowded.size else ():
        if value in crowded:
            lane[rows] = _spread(start_ns[rows], end_ns[rows])
    np.minimum(lane, MAX_LANES - 1, out=lane)
    return lane


def _spread(start_ns: Int64, end_ns: Int64) -> Int32:
    """Lanes in which events are disjoint, each filled from the earliest event on."""
    lane = np.full(start_ns.size, MAX_LANES - 1, dtype=np.int32)
    rows = np.arange(start_ns.size)
    for number in range(MAX_LANES - 1):
        if not rows.size:
            break
        is_here = _first_lane(start_ns[rows], end_ns[rows])
        lane[rows[is_here]] = number
        rows = rows[~is_here]
    return lane


def _first_lane(start_ns: Int64, end_ns: Int64) -> NDArray[np.bool_]:
    """The first event, the next one that starts after its end, and so on.

    Each event points to its successor. Each pass doubles the distance that is followed.
    """
    count = start_ns.size
    successor = np.searchsorted(start_ns, end_ns)
    # An event without duration starts at its own end.
    successor = np.maximum(successor, np.arange(1, count + 1))
    jump = np.append(successor, count)
    is_here = np.zeros(count + 1, dtype=bool)
    is_here[0] = True
    while jump[0] < count:
        is_here[jump[is_here]] = True
        jump = jump[jump]
    return is_here[:count]


# 46 bytes per event: 92 MB in memory while its timeline is shown, and a few MB in the cache.
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

    It keeps at most `max_events` of the reference worker, and half as many of each other one.
    """
    texts, arguments = _Texts(), Arguments()
    shift_ns = _shifts(signals)
    workers = [
        (
            signals.worker,
            signals.trace,
            _events(signals.trace, signals, texts, arguments, max_events),
        ),
        *(
            (worker, trace, _events(trace, None, texts, arguments, MAX_EVENTS_OF_OTHERS))
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
        argument_texts=arguments.all(),
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


def _events(
    trace: Trace, signals: Signals | None, texts: _Texts, arguments: Arguments, max_events: int
) -> _Events:
    """The events of a worker; what they belong to, and come from, only with its signals."""
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
    module, line, operator, source = unknown, unknown, unknown, unknown
    is_work = np.zeros(kept.size, dtype=bool)
    if signals is not None:
        module, line = _origins(signals, kept, texts)
        operator, source = _links(signals, kept)
        is_work = row_mask(len(events), signals.device.rows)[kept]
    return _Events(
        columns={
            "start_ns": events.start_ns[kept],
            "duration_ns": events.duration_ns[kept],
            "row": row[order],
            "kind": events.kind[kept],
            "name": texts.indices(trace.strings, events.name[kept]),
            "module": module,
            "line": line,
            "operator": operator,
            "source": source,
            "is_work": is_work,
            "arguments": unknown if signals is None else arguments.indices(trace, kept),
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


def _links(signals: Signals, kept: Int64) -> tuple[Int32, Int32]:
    """The operator of each event, and what it comes from, as places among the kept ones."""
    events = signals.trace.events
    # One more element than events, for row -1.
    place = np.full(len(events) + 1, -1, dtype=np.int32)
    place[kept] = np.arange(kept.size, dtype=np.int32)
    parent = events.parent[kept]
    around = np.where(parent >= 0, signals.launching_operator[parent], -1)
    is_launched = events.launched_by[kept] >= 0
    work = operators_of(signals, kept.astype(np.int32))
    source = np.where(is_launched, events.launched_by[kept], events.forward[kept])
    operator: Int32 = place[np.where(work >= 0, work, around)]
    return operator, place[source]


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


def select_events(
    stored: TimelineEvents, from_ns: int, to_ns: int, max_events: int, finding: int | None = None
) -> dict[str, Any]:
    """Select the reference worker's events from `from_ns` to `to_ns`.

    Beyond `max_events`, tracks take turns to contribute their longest events. Otherwise a thread
    with many nested calls would push short kernels off the picture.

    The result has `worker`, `from_ns`, `to_ns`, `tracks` (those with events in the range), `events`
    ordered by start with `track` as an index into `tracks`, `claims` (the time in the range that
    the finding claims, the longest intervals), `truncated` (events in the range that are not
    listed) and `left_out` (events of the whole trace that were never stored).
    """
    track_of = stored.track
    is_of_worker = stored.track_worker[track_of] == stored.worker
    inside = np.flatnonzero(stored.is_inside(from_ns, to_ns) & is_of_worker)
    inside = inside[np.lexsort((-stored.duration_ns[inside], stored.start_ns[inside]))]
    total = inside.size
    present, track = unique_inverse(track_of[inside])
    if total > max_events:
        chosen = np.sort(_longest_by_turns(track, stored.duration_ns[inside], max_events))
        inside, track = inside[chosen], track[chosen]
    kind_names = {kind.value: kind.name.lower() for kind in EventKind}
    return {
        "worker": stored.worker,
        "from_ns": from_ns,
        "to_ns": to_ns,
        "tracks": [
            {
                "label": stored.track_label[row],
                "process": stored.track_process[row],
                "kind": "device" if stored.track_is_device[row] else "host",
                "device": int(device) if (device := stored.track_device[row]) >= 0 else None,
            }
            for row in present.tolist()
        ],
        "events": [
            {
                "track": track_index,
                "start_ns": start_ns,
                "duration_ns": duration_ns,
                "name": stored.texts[name] if name >= 0 else "",
                "kind": kind_names[kind],
            }
            for track_index, start_ns, duration_ns, name, kind in zip(
                track.tolist(),
                stored.start_ns[inside].tolist(),
                stored.duration_ns[inside].tolist(),
                stored.name[inside].tolist(),
                stored.kind[inside].tolist(),
                strict=True,
            )
        ],
        "claims": _claims(stored, from_ns, to_ns, max_events, finding),
        "truncated": total - inside.size,
        "left_out": stored.left_out,
    }


def _claims(
    stored: TimelineEvents, from_ns: int, to_ns: int, max_claims: int, finding: int | None
) -> list[list[int]]:
    if finding is None:
        return []
    claims = intersect(stored.claims_of(finding), single(from_ns, to_ns))
    if len(claims) > max_claims:
        longest_first = np.argsort(claims[:, 0] - claims[:, 1], kind="stable")
        claims = claims[np.sort(longest_first[:max_claims])]
    rows: list[list[int]] = claims.tolist()
    return rows


def _longest_by_turns(
    track: NDArray[np.int64], duration_ns: NDArray[np.int64], count: int
) -> NDArray[np.int64]:
    """Positions of `count` events: each track's longest, then each track's second longest, etc.

    Ties go to the first track.
    """
    order = np.lexsort((-duration_ns, track))
    sizes = np.bincount(track)
    first = np.repeat(np.cumsum(sizes) - sizes, sizes)
    turn = np.arange(order.size) - first
    return order[np.lexsort((-duration_ns[order], turn))[:count]]


# Events of the same operator, kernel or copy repeat from step to step, so each list of arguments is
# stored once.

MAX_TEXTS = 100_000
"""Lists of arguments. Programs whose shapes never repeat have more; the others show none."""
MAX_CHARACTERS = 400
"""Of a value: HLO texts may have hundreds of operands."""
_Format = Callable[[Trace, Any], str]


def _text(trace: Trace, index: Any) -> str:
    return trace.text(int(index))


def _types(trace: Trace, index: Any) -> str:
    return trace.text(int(index)).replace(";", ", ")


def _size(_: Trace, size_bytes: Any) -> str:
    return format_bytes(float(size_bytes)) if size_bytes >= 0 else ""


def _counted(of: str) -> _Format:
    return lambda _, count: f"{int(count):,} {of}" if count >= 0 else ""


def _direction(_: Trace, direction: Any) -> str:
    return CopyDirection(int(direction)).name.lower().replace("_", " ")


def _host_memory(_: Trace, pageable: Any) -> str:
    return {0: "pinned", 1: "pageable"}.get(int(pageable), "")


# By table of the trace: label, column and form. Where an event is in several, the last one counts.
_ARGUMENTS: dict[str, tuple[tuple[str, str, _Format], ...]] = {
    "operators": (
        ("Shapes", "shapes", _text),
        ("Types", "dtypes", _types),
        ("Values", "values", _text),
    ),
    "hlo_events": (
        ("Operation", "op", lambda trace, op: _text(trace, trace.hlo.category[op])),
        ("Bytes", "op", lambda trace, op: _size(trace, trace.hlo.traffic_bytes[op])),
        ("HLO", "op", lambda trace, op: _text(trace, trace.hlo.text[op])),
    ),
    "kernels": (
        ("Grid", "grid_blocks", _counted("blocks")),
        ("Block", "block_threads", _counted("threads")),
        ("Registers", "registers", _counted("per thread")),
        ("Shared memory", "shared_memory_bytes", _size),
    ),
    "copies": (
        ("Copy", "direction", _direction),
        ("Bytes", "size_bytes", _size),
        ("Host memory", "pageable", _host_memory),
    ),
    "collectives": (
        ("Collective", "operation", _text),
        ("Bytes", "size_bytes", _size),
        ("Types", "dtype", _types),
        ("Group", "group_size", _counted("ranks")),
        ("Group name", "description", _text),
        ("Ranks", "ranks", _text),
    ),
}


class Arguments:
    """Lists of arguments by index; each is stored once."""

    def __init__(self) -> None:
        self._index_of: dict[str, int] = {}

    def indices(self, trace: Trace, rows: Int64) -> Int32:
        """The index of each event's arguments; -1 for none."""
        found = np.full(len(trace.events), -1, dtype=np.int32)
        for name, arguments in _ARGUMENTS.items():
            table = getattr(trace, name)
            if not len(table.row):
                continue
            columns = [getattr(table, column) for _, column, _ in arguments]
            first, group = group_rows(*columns)
            index = np.full(len(first), -1, dtype=np.int32)
            for at, place in enumerate(first[:MAX_TEXTS].tolist()):
                values = [
                    (label, form(trace, column[place])[:MAX_CHARACTERS])
                    for (label, _, form), column in zip(arguments, columns, strict=True)
                ]
                index[at] = self._index([pair for pair in values if pair[1] not in ("", "[]")])
            is_known = index[group] >= 0
            found[table.row[is_known]] = index[group][is_known]
        indices: Int32 = found[rows]
        return indices

    def all(self) -> tuple[str, ...]:
        """The lists in order of their indices, as JSON."""
        return tuple(self._index_of)

    def _index(self, pairs: list[tuple[str, str]]) -> int:
        text = json.dumps(pairs, separators=(",", ":"))
        if not pairs or (len(self._index_of) >= MAX_TEXTS and text not in self._index_of):
            return -1
        return self._index_of.setdefault(text, len(self._index_of))
