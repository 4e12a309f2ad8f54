"""What a timeline draws of a range of time, ready for JSON and bounded whatever the trace's size.

Events that are shorter than a bin share a box with their neighbors in it, so the number of boxes
depends on the picture and not on the trace. If there are still too many, bins get wider.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.report.timeline.stored_events import TimelineEvents
from tb_perfadvisor.trace.integer_groups import unique_inverse
from tb_perfadvisor.trace.intervals import Intervals, covered_before, intersect, single
from tb_perfadvisor.trace.kinds import EventKind
from tb_perfadvisor.trace.tables import Int64

MAX_BOXES = 30_000
"""About a megabyte of JSON, a fifth of that compressed, and milliseconds to draw."""
MAX_BINS = 8_192
MAX_CAUSE_BINS = 1_024
MAX_CLAIMS = 10_000
"""Of all findings together."""
MAX_STEPS = 200
"""More of them are too close to one another to be told apart."""
MAX_TRACKS = 1_000
MAX_FOUND = 200


class _Boxes(Struct, frozen=True):
    """Boxes by row and start; columns of shape (n,)."""

    first: Int64
    """Position of the first event among `events`."""
    events: Int64
    bin_ns: int


def select_window(
    stored: TimelineEvents,
    from_ns: int,
    to_ns: int,
    bins: int,
    *,
    worker: int | None = None,
    max_boxes: int = MAX_BOXES,
) -> dict[str, Any]:
    """Select what a timeline from `from_ns` to `to_ns` shows.

    Args:
        stored: The stored events.
        from_ns: The beginning.
        to_ns: The end.
        bins: How many parts of the range can be told apart, such as the width in pixels.
        worker: Whose clock all times are on; by default the reference worker's.
        max_boxes: The largest number of boxes.

    Returns:
        `worker`, `from_ns`, `to_ns`, `whole_ns` (the end of the last event), `bin_ns`, `left_out`
        (events that were never stored), `ranks_left_out` (ranks without any), and columns:
        `tracks`; `boxes`, each one event, or `count` events of which the `event` is the longest and
        which take `busy_ns` together; `texts`, which names, modules and lines index; `causes`, with
        their time in each bin; `claims` of each finding, at most as detailed as a bin; `steps`.
    """
    worker = stored.worker if worker is None else worker
    shift_ns = int(stored.worker_shift_ns[worker])
    begin_ns, end_ns = from_ns + shift_ns, to_ns + shift_ns
    boxes = _boxes(stored, begin_ns, end_ns, max(min(bins, MAX_BINS), 1), max_boxes)
    drawn, texts = _drawn(stored, boxes, begin_ns)
    return {
        "worker": worker,
        "from_ns": from_ns,
        "to_ns": to_ns,
        "window_ns": [stored.start_ns_of_window - shift_ns, stored.end_ns_of_window - shift_ns],
        "whole_ns": stored.whole_ns - shift_ns,
        "bin_ns": boxes.bin_ns,
        "left_out": stored.left_out,
        "ranks_left_out": stored.ranks_left_out,
        "tracks": _tracks(stored, worker),
        "kinds": [kind.name.lower() for kind in EventKind],
        "texts": texts,
        "boxes": drawn,
        "causes": _causes(stored, begin_ns, end_ns, bins),
        "claims": _claims(stored, begin_ns, end_ns, boxes.bin_ns),
        "steps": _steps(stored, begin_ns, end_ns),
    }


def typical_range(stored: TimelineEvents) -> tuple[int, int]:
    """The step of median length, with a little before and after it; without steps, everything."""
    count = stored.step_number.size
    if not count:
        return 0, max(stored.whole_ns, 1)
    duration_ns = stored.step_end_ns - stored.step_start_ns
    place = np.argsort(duration_ns, kind="stable")[(count - 1) // 2]
    margin_ns = int(duration_ns[place]) // 40
    from_ns = max(int(stored.step_start_ns[place]) - margin_ns, 0)
    return from_ns, max(int(stored.step_end_ns[place]) + margin_ns, from_ns + 1)


def find_events(stored: TimelineEvents, text: str) -> dict[str, Any]:
    """The events whose names contain a text, without regard to case; the longest if there are many.

    Returns:
        `count` and `total_ns` of all, and `events` in order of time.
    """
    wanted = text.casefold()
    is_wanted = np.array([wanted in name.casefold() for name in stored.texts] + [False], dtype=bool)
    found = np.flatnonzero(is_wanted[stored.name])
    longest = found[np.argsort(-stored.duration_ns[found], kind="stable")[:MAX_FOUND]]
    in_time = longest[np.lexsort((stored.row[longest], stored.start_ns[longest]))]
    return {
        "count": int(found.size),
        "total_ns": int(stored.duration_ns[found].sum()),
        "events": [describe_event(stored, event) for event in in_time.tolist()],
    }


def describe_event(stored: TimelineEvents, event: int, worker: int | None = None) -> dict[str, Any]:
    """One event, with its texts, and its start on the clock of a worker."""
    shift_ns = int(stored.worker_shift_ns[stored.worker if worker is None else worker])

    def text(index: int) -> str:
        return stored.texts[index] if index >= 0 else ""

    return {
        "event": event,
        "row": int(stored.row[event]),
        "start_ns": int(stored.start_ns[event]) - shift_ns,
        "duration_ns": int(stored.duration_ns[event]),
        "kind": EventKind(int(stored.kind[event])).name.lower(),
        "name": text(int(stored.name[event])),
        "module": text(int(stored.module[event])),
        "line": text(int(stored.line[event])),
    }


def _boxes(stored: TimelineEvents, begin_ns: int, end_ns: int, bins: int, max_boxes: int) -> _Boxes:
    start_ns, duration_ns = stored.start_ns, stored.duration_ns
    # An event without duration counts if it starts in the range, any other if it overlaps it.
    inside = np.flatnonzero(
        (start_ns < end_ns)
        & ((start_ns + duration_ns > begin_ns) | ((duration_ns == 0) & (start_ns >= begin_ns)))
    )
    start_ns, duration_ns, row = start_ns[inside], duration_ns[inside], stored.row[inside]
    # Powers of two, so that bins of neighboring ranges begin at the same times.
    exponent = max((end_ns - begin_ns) // bins, 1).bit_length() - 1
    while True:
        at = start_ns >> exponent
        is_long = duration_ns >= 1 << exponent
        is_first = np.ones(inside.size, dtype=bool)
        is_first[1:] = is_long[1:] | is_long[:-1] | (at[1:] != at[:-1]) | (row[1:] != row[:-1])
        first = np.flatnonzero(is_first)
        if first.size <= max_boxes or end_ns - begin_ns < 1 << exponent:
            return _Boxes(first[:max_boxes], inside, 1 << exponent)
        exponent += 1


def _drawn(
    stored: TimelineEvents, boxes: _Boxes, begin_ns: int
) -> tuple[dict[str, list[int]], list[str]]:
    events, first = boxes.events, boxes.first
    if not first.size:
        empty: list[int] = []
        names = ("row", "start_ns", "duration_ns", "busy_ns", "count", "event", "kind")
        return dict.fromkeys((*names, "name", "module", "line"), empty), []
    start_ns, duration_ns = stored.start_ns[events], stored.duration_ns[events]
    count = np.diff(first, append=events.size)
    end_ns = np.maximum.reduceat(start_ns + duration_ns, first)
    longest = events[_longest_of(duration_ns, first, count)]
    columns = [stored.name[longest], stored.module[longest], stored.line[longest]]
    used, index = unique_inverse(np.concatenate(columns))
    # The first of the used ones is -1 if anything is unknown.
    index = index.astype(np.int64) - int(used[0] < 0)
    name, module, line = np.split(index, 3)
    drawn: dict[str, NDArray[np.integer]] = {
        "row": stored.row[longest],
        "start_ns": start_ns[first] - begin_ns,
        "duration_ns": end_ns - start_ns[first],
        "busy_ns": np.add.reduceat(duration_ns, first),
        "count": count,
        "event": longest,
        "kind": _kind_places()[stored.kind[longest]],
        "name": name,
        "module": module,
        "line": line,
    }
    texts = [stored.texts[at] for at in used.tolist() if at >= 0]
    return {key: column.tolist() for key, column in drawn.items()}, texts


def _longest_of(duration_ns: Int64, first: Int64, count: Int64) -> Int64:
    """The position of the first among the longest events of each box."""
    group = np.repeat(np.arange(first.size), count)
    is_longest = duration_ns == np.maximum.reduceat(duration_ns, first)[group]
    positions = np.flatnonzero(is_longest)
    return positions[np.searchsorted(group[positions], np.arange(first.size))]


def _kind_places() -> NDArray[np.int64]:
    """The place of each kind in `kinds`, by its number."""
    places = np.zeros(256, dtype=np.int64)
    places[[kind.value for kind in EventKind]] = np.arange(len(EventKind))
    return places


def _tracks(stored: TimelineEvents, worker: int) -> list[dict[str, Any]]:
    """All tracks, whatever the range, so that rows stay where they are."""
    first_row = stored.track_first_row.tolist()
    return [
        {
            "label": stored.track_label[track],
            "process": stored.track_process[track],
            "kind": "device" if stored.track_is_device[track] else "host",
            "device": int(device) if (device := stored.track_device[track]) >= 0 else None,
            "worker": int(stored.track_worker[track]),
            "row": first_row[track],
            "rows": first_row[track + 1] - first_row[track],
        }
        for track in range(min(len(stored.track_label), MAX_TRACKS))
    ]


def _causes(stored: TimelineEvents, begin_ns: int, end_ns: int, bins: int) -> dict[str, Any]:
    """How much time each cause takes in each of equal parts of the range."""
    count = max(min(bins, MAX_CAUSE_BINS, end_ns - begin_ns), 1)
    edges = np.linspace(begin_ns, end_ns, count + 1).astype(np.int64)
    totals = {}
    for index, cause in enumerate(stored.causes):
        intervals = stored.intervals_of(index)
        if len(intervals):
            total_ns = np.diff(covered_before(intervals, edges))
            if total_ns.any():
                totals[cause] = total_ns.tolist()
    return {"bins": count, "total_ns": totals}


def _claims(
    stored: TimelineEvents, begin_ns: int, end_ns: int, bin_ns: int
) -> list[dict[str, Any]]:
    """The time that each finding claims in the range; intervals less than a bin apart are one."""
    window = single(begin_ns, end_ns)
    claims = [
        (finding, intersect(stored.claims_of(finding), window))
        for finding in np.unique(stored.claim_finding).tolist()
    ]
    while sum(len(intervals) for _, intervals in claims) > MAX_CLAIMS:
        bin_ns *= 2
        claims = [(finding, _joined(intervals, bin_ns)) for finding, intervals in claims]
    return [
        {"finding": finding, "intervals": (_joined(intervals, bin_ns) - begin_ns).tolist()}
        for finding, intervals in claims
        if len(intervals)
    ]


def _joined(intervals: Intervals, gap_ns: int) -> Intervals:
    """Intervals without the gaps that are shorter than `gap_ns`."""
    if not len(intervals):
        return intervals
    is_first = np.append(True, intervals[1:, 0] - intervals[:-1, 1] >= gap_ns)
    is_last = np.append(is_first[1:], True)
    joined: Intervals = np.column_stack((intervals[is_first, 0], intervals[is_last, 1]))
    return joined


def _steps(stored: TimelineEvents, begin_ns: int, end_ns: int) -> list[list[int]]:
    """Number, start and end of the steps in the range."""
    rows = np.flatnonzero((stored.step_start_ns < end_ns) & (stored.step_end_ns > begin_ns))
    if rows.size > MAX_STEPS:
        return []
    times = stored.step_start_ns[rows] - begin_ns, stored.step_end_ns[rows] - begin_ns
    steps: list[list[int]] = np.column_stack((stored.step_number[rows], *times)).tolist()
    return steps
