"""What takes the time of a range: its causes, operators, kernels, streams and lines.

The causes are those of the analysis, cut to the range; device work is what the analysis counts.
So the sums over the whole recording, or over a step, are the engine's own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.report.timeline.window import TimelineEvents
from tb_perfadvisor.trace.integer_groups import distinct, places_by_value
from tb_perfadvisor.trace.intervals import Intervals, overlap_ns, total_ns, union
from tb_perfadvisor.trace.kinds import EventKind
from tb_perfadvisor.trace.tables import Int32, Int64

MAX_ROWS = 100
"""Per table."""
MAX_STEPS = 1_000
"""To choose from."""


class _Cut(Struct, frozen=True):
    """The events of the reference worker in a range, cut to it; columns of shape (n,)."""

    events: Int64
    """Places in the columns of the stored events."""
    start_ns: Int64
    ns: Int64
    is_call: NDArray[np.bool_]
    """Operators of the host."""
    is_work: NDArray[np.bool_]
    own_ns: Int64
    """Of calls: without the operators inside; 0 for other events."""
    device_ns: Int64
    """Of the device's work; 0 for other events."""


def sum_range(stored: TimelineEvents, from_ns: int, to_ns: int) -> dict[str, Any]:
    """Sum up the reference worker's time in a range, on its own clock.

    The result has `causes`, and by name the tables `operators`, `kernels`, `streams` and `lines`,
    those that take the most time first. `step` is the one in the middle of the range, and the
    parts of it at which the range begins and ends; `steps` are all that there are.
    """
    cut = _cut(stored, from_ns, to_ns)
    kernels = np.flatnonzero(cut.is_work & (stored.kind[cut.events] == EventKind.KERNEL))
    counted = np.flatnonzero(cut.is_call | cut.is_work)
    owner = np.where(cut.is_call, cut.events, stored.operator[cut.events])
    operator = np.where(owner >= 0, stored.name[owner], -1)
    return {
        "from_ns": from_ns,
        "to_ns": to_ns,
        "step": _step_of(stored, from_ns, to_ns),
        "steps": stored.step_number[:MAX_STEPS].tolist(),
        "has_device": bool(stored.is_work.any()),
        "causes": _causes(stored, from_ns, to_ns),
        "operators": _table(stored, cut, counted, operator[counted]),
        "kernels": _table(stored, cut, kernels, stored.name[cut.events[kernels]]),
        "streams": _streams(stored, cut),
        "lines": _table(stored, cut, counted, stored.line[cut.events[counted]]),
    }


def range_of_step(
    stored: TimelineEvents, step: int | None, from_part: float, to_part: float
) -> tuple[int, int]:
    """The range between two parts of a step, which count from its start in lengths of it.

    Without a number, or if there is no such step, of the typical one; without steps, of the whole
    recording.
    """
    begin_ns, end_ns = 0, stored.whole_ns
    if stored.step_number.size:
        place = stored.place_of_step(step)
        begin_ns, end_ns = int(stored.step_start_ns[place]), int(stored.step_end_ns[place])
    length_ns = end_ns - begin_ns
    from_ns = max(begin_ns + round(from_part * length_ns), 0)
    return from_ns, max(begin_ns + round(to_part * length_ns), from_ns + 1)


def _step_of(stored: TimelineEvents, from_ns: int, to_ns: int) -> dict[str, Any] | None:
    """The step in the middle of a range, and the parts of it where the range begins and ends."""
    middle_ns = (from_ns + to_ns) // 2
    inside = np.flatnonzero((stored.step_start_ns <= middle_ns) & (stored.step_end_ns > middle_ns))
    if not inside.size:
        return None
    begin_ns, end_ns = stored.step_start_ns[inside[0]], stored.step_end_ns[inside[0]]
    return {
        "number": int(stored.step_number[inside[0]]),
        "from_part": float((from_ns - begin_ns) / (end_ns - begin_ns)),
        "to_part": float((to_ns - begin_ns) / (end_ns - begin_ns)),
    }


def _cut(stored: TimelineEvents, from_ns: int, to_ns: int) -> _Cut:
    is_of_worker = stored.track_worker[stored.track] == stored.worker
    events = np.flatnonzero(stored.is_inside(from_ns, to_ns) & is_of_worker)
    start_ns = np.maximum(stored.start_ns[events], from_ns)
    ns = np.minimum(stored.end_ns[events], to_ns) - start_ns
    is_call, is_work = stored.kind[events] == EventKind.OPERATOR, stored.is_work[events]
    inner = np.flatnonzero(is_call & (stored.operator[events] >= 0))
    inside_ns = np.bincount(
        stored.operator[events[inner]], weights=ns[inner], minlength=stored.start_ns.size
    ).astype(np.int64)
    return _Cut(
        events=events,
        start_ns=start_ns,
        ns=ns,
        is_call=is_call,
        is_work=is_work,
        own_ns=np.where(is_call, np.maximum(ns - inside_ns[events], 0), 0),
        device_ns=np.where(is_work, ns, 0),
    )


def _causes(stored: TimelineEvents, from_ns: int, to_ns: int) -> list[dict[str, Any]]:
    """The time of each cause, the largest first."""
    edges = np.array([from_ns]), np.array([to_ns])
    total_ns_of = {
        cause: int(overlap_ns(stored.intervals_of(index), *edges)[0])
        for index, cause in enumerate(stored.causes)
    }
    ranked = sorted(total_ns_of.items(), key=lambda item: -item[1])
    return [{"cause": cause, "total_ns": ns} for cause, ns in ranked if ns]


def _table(stored: TimelineEvents, cut: _Cut, rows: Int64, text: Int32 | Int64) -> dict[str, Any]:
    """Sums of some of the events by a text; those without one are left out."""
    is_known = text >= 0
    rows, text = rows[is_known], text[is_known]
    texts = distinct(text)
    group = np.searchsorted(texts, text)

    def summed(values: NDArray[Any]) -> Int64:
        # Exact: float64 holds integers up to 2^53 ns, 104 days.
        total: Int64 = np.bincount(group, weights=values[rows], minlength=len(texts)).astype(
            np.int64
        )
        return total

    own_ns, device_ns = summed(cut.own_ns), summed(cut.device_ns)
    calls, launched = summed(cut.is_call), summed(cut.is_work)
    count = np.where(calls > 0, calls, launched)
    return _ranked(
        [
            {"name": stored.texts[name], "count": count, "own_ns": own, "device_ns": device}
            for name, count, own, device in zip(
                texts.tolist(), count.tolist(), own_ns.tolist(), device_ns.tolist(), strict=True
            )
        ]
    )


def _streams(stored: TimelineEvents, cut: _Cut) -> dict[str, Any]:
    """The time in which each stream of the device works."""
    work = np.flatnonzero(cut.is_work)
    rows = []
    for track, places in places_by_value(stored.track[cut.events[work]]):
        start_ns, ns = cut.start_ns[work[places]], cut.ns[work[places]]
        busy_ns = total_ns(union(start_ns, start_ns + ns))
        name = stored.track_label[track]
        rows.append({"name": name, "count": len(places), "own_ns": 0, "device_ns": busy_ns})
    return _ranked(rows)


def _ranked(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The rows that take the most time, on the device or else on the host."""
    has_device = any(row["device_ns"] for row in rows)
    key = "device_ns" if has_device else "own_ns"
    ranked = sorted(rows, key=lambda row: (-row[key], -row["own_ns"], row["name"]))
    return {"rows": ranked[:MAX_ROWS], "truncated": max(len(ranked) - MAX_ROWS, 0)}


# Work of the device waits for the work before it on its stream, for work of another stream, or for
# its launch. The launching thread is followed back to its last wait for the device, and from there
# the path goes on with the work that was waited for. A thread that had nothing to do before was
# started by the thread of the steps, which waits for those of the backward pass.
#
# Waits between streams are not recorded: work that starts long after its own stream was free and it
# was launched waited for what ended last elsewhere.

_LATENCY_NS = 10_000
"""Work that could start starts within this time."""
_PAUSE_NS = 50_000
"""A thread that does nothing for longer has ended what it was asked to do."""
MAX_SEGMENTS = 20_000


class _Rows(Struct, frozen=True):
    """Events in order of their ends; columns of shape (n,)."""

    event: Int64
    start_ns: Int64
    end_ns: Int64

    def last_until(self, at_ns: int) -> int:
        """The place of the last event that has ended at a time; -1 for none."""
        return int(np.searchsorted(self.end_ns, at_ns, side="right")) - 1


class _Path:
    """Goes back from the end of a step."""

    def __init__(self, stored: TimelineEvents) -> None:
        self._stored = stored
        self._track, self._end_ns = stored.track, stored.end_ns
        is_of_worker = stored.track_worker[self._track] == stored.worker
        is_long = stored.duration_ns > 0
        self._work = self._rows(np.flatnonzero(stored.is_work & is_of_worker & is_long))
        self._place_of_work = np.full(len(stored.start_ns), -1)
        self._place_of_work[self._work.event] = np.arange(len(self._work.event))
        self._work_on = self._by_track(self._work.event)
        self._waits_on = self._by_track(
            np.flatnonzero((stored.kind == EventKind.SYNCHRONIZE) & is_of_worker)
        )
        # The thread of the steps comes first, if there is one.
        self._step_thread = int(np.argmin(stored.track_is_device))
        self._stretches: dict[int, Intervals] = {}
        nodes = (stored.source >= 0) & ~stored.track_is_device[self._track] & is_of_worker
        self._backward = [
            track for track in distinct(self._track[nodes]).tolist() if track != self._step_thread
        ]
        self.segments: list[tuple[int, int, int]] = []

    def _rows(self, events: Int64) -> _Rows:
        end_ns = self._end_ns[events]
        order = np.argsort(end_ns, kind="stable")
        return _Rows(events[order], self._stored.start_ns[events[order]], end_ns[order])

    def _by_track(self, events: Int64) -> dict[int, _Rows]:
        return {
            track: self._rows(events[places])
            for track, places in places_by_value(self._track[events])
        }

    def add(self, track: int, from_ns: int, to_ns: int) -> None:
        """Add a stretch before the ones that are there; neighbors on a track are one."""
        if to_ns <= from_ns:
            return
        if self.segments and self.segments[-1][:2] == (track, to_ns):
            to_ns = self.segments.pop()[2]
        self.segments.append((track, from_ns, to_ns))

    def follow(self, start_ns: int, end_ns: int) -> None:
        """Go from the end of a step back to its start."""
        place = self._work.last_until(end_ns)
        ended_ns = int(self._work.end_ns[place]) if place >= 0 else start_ns
        # What the host does after the device's last work.
        self.add(self._step_thread, max(ended_ns, start_ns), end_ns)
        at_ns = ended_ns
        while at_ns > start_ns and len(self.segments) < MAX_SEGMENTS:
            thread, at_ns = self._through_work(self._work.last_until(at_ns), start_ns)
            at_ns = self._through_host(thread, at_ns, start_ns)

    def _through_work(self, place: int, start_ns: int) -> tuple[int, int]:
        """Follow the device's work back to a launch; the launching thread, and the launch's end."""
        stored, work = self._stored, self._work
        while len(self.segments) < MAX_SEGMENTS:
            event, begun_ns = int(work.event[place]), int(work.start_ns[place])
            track, launch = int(self._track[event]), int(stored.source[event])
            self.add(track, max(begun_ns, start_ns), int(work.end_ns[place]))
            on_stream = self._work_on[track]
            before, other = on_stream.last_until(begun_ns), work.last_until(begun_ns)
            free_ns = int(on_stream.end_ns[before]) if before >= 0 else -1
            # A call may return after its work has begun.
            ready_ns = min(int(self._end_ns[launch]), begun_ns) if launch >= 0 else -1
            bound_ns = max(free_ns, ready_ns)
            is_held = begun_ns - bound_ns > _LATENCY_NS
            if other >= 0 and is_held and int(work.end_ns[other]) > bound_ns:
                place, bound_ns = other, int(work.end_ns[other])
            else:
                is_behind = before >= 0 and free_ns >= ready_ns
                place = int(self._place_of_work[on_stream.event[before]]) if is_behind else -1
            self.add(track, max(bound_ns, start_ns), begun_ns)
            if bound_ns <= start_ns:
                break
            if place < 0:
                return int(self._track[launch]), bound_ns
        return self._step_thread, start_ns

    def _through_host(self, thread: int, at_ns: int, start_ns: int) -> int:
        """Follow threads back to the last wait for the device; when what it waited for ended."""
        while at_ns > start_ns:
            helper, since_ns = self._before(thread, at_ns, start_ns)
            work_ns = self._waited_for(thread, at_ns, since_ns)
            self.add(thread, since_ns if work_ns is None else work_ns, at_ns)
            if work_ns is not None:
                return work_ns
            thread, at_ns = helper, since_ns
        return start_ns

    def _before(self, thread: int, at_ns: int, start_ns: int) -> tuple[int, int]:
        """The thread that a thread waited for last, or that started it, and until when."""
        if thread != self._step_thread:
            return self._step_thread, max(self._begun(thread, at_ns), start_ns)
        found = thread, start_ns
        for track in self._backward:
            ends = self._stretches_of(track)[:, 1] - _PAUSE_NS
            place = int(np.searchsorted(ends, at_ns, side="right")) - 1
            if place >= 0 and int(ends[place]) > found[1]:
                found = track, int(ends[place])
        return found

    def _waited_for(self, thread: int, at_ns: int, since_ns: int) -> int | None:
        """When the work ended that a thread waited for last; None if it has not since a time."""
        waits = self._waits_on.get(thread)
        if waits is None:
            return None
        place = waits.last_until(at_ns)
        while place >= 0 and int(waits.end_ns[place]) > since_ns:
            ended = self._work.last_until(int(waits.end_ns[place]))
            work_ns = int(self._work.end_ns[ended]) if ended >= 0 else -1
            if work_ns > max(int(waits.start_ns[place]), since_ns):
                return work_ns
            place -= 1
        return None

    def _stretches_of(self, thread: int) -> Intervals:
        """When a thread does something, each with a pause at its end."""
        stored = self._stored
        if thread not in self._stretches:
            is_outer = stored.row == stored.track_first_row[thread]
            events = np.flatnonzero(is_outer & (stored.duration_ns > 0))
            reach_ns = self._end_ns[events] + _PAUSE_NS
            self._stretches[thread] = union(stored.start_ns[events], reach_ns)
        return self._stretches[thread]

    def _begun(self, thread: int, at_ns: int) -> int:
        """When a thread began with what it does at a time."""
        begins = self._stretches_of(thread)[:, 0]
        place = int(np.searchsorted(begins, at_ns, side="right")) - 1
        return int(begins[place]) if place >= 0 else at_ns


def critical_path(
    stored: TimelineEvents, step: int | None, worker: int | None = None
) -> dict[str, Any]:
    """The critical path of a step of the reference worker, by default of the typical one.

    `segments` are the track, the start and the end of each stretch in order of time, on the clock
    of `worker`; together they cover the step. `tracks` has the time on each track.
    """
    if not stored.step_number.size:
        return {"step": None, "segments": [], "tracks": []}
    place = stored.place_of_step(step)
    path = _Path(stored)
    path.follow(int(stored.step_start_ns[place]), int(stored.step_end_ns[place]))
    shift_ns = int(stored.worker_shift_ns[stored.worker if worker is None else worker])
    segments = [
        (track, from_ns - shift_ns, to_ns - shift_ns)
        for track, from_ns, to_ns in reversed(path.segments)
    ]
    tracks: dict[int, int] = {}
    for track, from_ns, to_ns in segments:
        tracks[track] = tracks.get(track, 0) + to_ns - from_ns
    return {
        "step": int(stored.step_number[place]),
        "segments": segments,
        "tracks": sorted(tracks.items(), key=lambda item: -item[1]),
    }
