"""What a timeline draws of a range of time, ready for JSON and bounded whatever the trace's size.

Events that are shorter than a bin share a box with their neighbors in it, so the number of boxes
depends on the picture and not on the trace. If there are still too many, bins get wider.

The timeline of an exported page, which has no server to ask for more detail.

The whole recording, a typical step, the step in which each finding costs time and the events around
its first evidence are there. Each is as detailed as its number of boxes allows, so the page's size
is bounded.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.contract import model
from tb_perfadvisor.errors import PerfAdvisorError
from tb_perfadvisor.trace.integer_groups import distinct, unique_inverse
from tb_perfadvisor.trace.intervals import Intervals, intersect, overlap_ns, single
from tb_perfadvisor.trace.kinds import EventKind
from tb_perfadvisor.trace.tables import Int32, Int64, UInt8

_TEXTS = ("argument_texts", "texts", "track_label", "track_process", "causes")
_SCALARS = (
    "worker",
    "start_ns_of_window",
    "end_ns_of_window",
    "whole_ns",
    "left_out",
    "ranks_left_out",
)


class TimelineEvents(Struct, frozen=True):
    """Columns of events by row and start. Times are on the clock of the reference worker.

    A row is a lane of a track, drawn below the one before it. `name`, `module` and `line` index
    `texts`; -1 is unknown.
    """

    worker: int
    """The reference worker: its index in the report's `workers`."""
    start_ns_of_window: int
    """The time that causes are given to."""
    end_ns_of_window: int
    whole_ns: int
    """End of the last event."""
    left_out: int
    """How many events of the ranks that are there are not stored."""
    ranks_left_out: int
    """How many ranks have too many events to be there."""
    start_ns: Int64
    duration_ns: Int64
    row: Int32
    kind: UInt8
    """`EventKind`."""
    name: Int32
    module: Int32
    line: Int32
    """Source line: `train.py:12 step`."""
    operator: Int32
    """The place of the operator around it, or whose work it does on the device; -1 for none."""
    source: Int32
    """The place of what it comes from: of device work its launch, of a node of the backward pass
    its forward operator; -1 if unknown."""
    is_work: NDArray[np.bool_]
    """Whether it is work of the device that causes are given to, as the analysis counts it."""
    arguments: Int32
    """Index into `argument_texts`; -1 for none."""
    track_first_row: Int32
    """The first row of each track, and at the end the number of rows; shape (tracks + 1,)."""
    track_is_device: NDArray[np.bool_]
    track_device: Int32
    """Device index, -1 on the host."""
    track_worker: Int32
    worker_shift_ns: Int64
    """What each worker's own times are behind those of the reference worker; shape (workers,)."""
    cause: UInt8
    """Index into `causes`, ascending; the columns of causes are in order of time within each."""
    cause_start_ns: Int64
    cause_end_ns: Int64
    claim_finding: Int32
    """Index of the report's finding that claims the time, in ascending order."""
    claim_start_ns: Int64
    claim_end_ns: Int64
    step_number: Int64
    step_start_ns: Int64
    step_end_ns: Int64
    argument_texts: tuple[str, ...]
    """Labels and values, each a list of pairs as JSON."""
    texts: tuple[str, ...]
    track_label: tuple[str, ...]
    track_process: tuple[str, ...]
    causes: tuple[str, ...]

    @property
    def end_ns(self) -> Int64:
        """Shape (n,)."""
        return self.start_ns + self.duration_ns

    @property
    def track(self) -> Int64:
        """The track of each event."""
        track: Int64 = np.searchsorted(self.track_first_row, self.row, side="right") - 1
        return track

    def is_inside(self, from_ns: int, to_ns: int) -> NDArray[np.bool_]:
        """Whether each event is in a range: it overlaps it, or starts there without duration."""
        is_at_once = (self.duration_ns == 0) & (self.start_ns >= from_ns)
        inside: NDArray[np.bool_] = (self.start_ns < to_ns) & ((self.end_ns > from_ns) | is_at_once)
        return inside

    def place_of_step(self, number: int | None) -> int:
        """The row of a step; without a number, or if there is no such step, of the typical one."""
        named = np.flatnonzero(self.step_number == number)
        return int(named[0]) if named.size else _typical_step(self)

    def claims_of(self, finding: int) -> Intervals:
        """The time that a finding's saving is taken from; empty without a saving."""
        first, last = np.searchsorted(self.claim_finding, (finding, finding + 1))
        return np.column_stack((self.claim_start_ns[first:last], self.claim_end_ns[first:last]))

    def intervals_of(self, cause: int) -> Intervals:
        """The time of a cause, an index into `causes`."""
        first, last = np.searchsorted(self.cause, (cause, cause + 1))
        return np.column_stack((self.cause_start_ns[first:last], self.cause_end_ns[first:last]))


_COLUMNS = tuple(
    name for name in TimelineEvents.__struct_fields__ if name not in (*_TEXTS, *_SCALARS)
)


def encode_events(stored: TimelineEvents) -> bytes:
    """Encode as a compressed npz without pickles."""
    arrays: dict[str, NDArray[Any]] = {name: getattr(stored, name) for name in _COLUMNS}
    for name in _TEXTS:
        text = json.dumps(list(getattr(stored, name)))
        arrays[name] = np.frombuffer(text.encode("ascii"), dtype=np.uint8)
    arrays["scalars"] = np.array([getattr(stored, name) for name in _SCALARS], dtype=np.int64)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def decode_events(content: bytes) -> TimelineEvents:
    """Decode what `encode_events` wrote."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            columns: dict[str, Any] = {name: archive[name] for name in _COLUMNS}
            for name in _TEXTS:
                columns[name] = tuple(json.loads(archive[name].tobytes()))
            scalars = dict(zip(_SCALARS, archive["scalars"].tolist(), strict=True))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise PerfAdvisorError(
            "the stored events cannot be read", hint="Analyze the capture again."
        ) from error
    return TimelineEvents(**scalars, **columns)


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
MAX_NAMES_FOUND = 50
MAX_LINKED = 50


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

    As many as `bins` parts of the range can be told apart, such as the width in pixels. All times
    are on the clock of `worker`, by default the reference worker.

    The result has `worker`, `from_ns`, `to_ns`, `whole_ns` (the end of the last event), `bin_ns`,
    `left_out` (events that were never stored), `ranks_left_out` (ranks without any), and columns:
    `tracks`; `boxes`, each of one event, or of `count` events that take `busy_ns` together, the
    longest of which is `event`; `texts`, which names, modules and lines index; `causes`, with
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


def typical_range(stored: TimelineEvents, finding: int | None = None) -> tuple[int, int]:
    """The typical step, with a little before and after it; without steps, everything.

    With a finding, the step in which it costs time: the typical one, unless the finding costs less
    than half of its mean there. Then it is the step that loses the most.
    """
    if not stored.step_number.size:
        return 0, max(stored.whole_ns, 1)
    place = _typical_step(stored)
    if finding is not None:
        claims = stored.claims_of(finding)
        claimed_ns = overlap_ns(claims, stored.step_start_ns, stored.step_end_ns)
        if 2 * claimed_ns[place] < claimed_ns.mean():
            place = int(claimed_ns.argmax())
    from_ns, to_ns = int(stored.step_start_ns[place]), int(stored.step_end_ns[place])
    margin_ns = (to_ns - from_ns) // 40
    from_ns = max(from_ns - margin_ns, 0)
    return from_ns, max(to_ns + margin_ns, from_ns + 1)


def _typical_step(stored: TimelineEvents) -> int:
    """The row of the step that is nearest in its causes to the mean of all steps."""
    start_ns, end_ns = stored.step_start_ns, stored.step_end_ns
    parts_ns = [
        overlap_ns(stored.intervals_of(cause), start_ns, end_ns)
        for cause in range(len(stored.causes))
    ]
    # The length tells steps apart where causes do not reach: outside the measured window.
    by_step_ns = np.stack([*parts_ns, end_ns - start_ns])
    distance_ns = np.abs(by_step_ns - by_step_ns.mean(axis=1, keepdims=True)).sum(axis=0)
    return int(distance_ns.argmin())


def find_events(stored: TimelineEvents, text: str) -> dict[str, Any]:
    """The events whose names contain a text, without regard to case; the longest if there are many.

    `count` and `total_ns` are those of all; `events` are in order of time. `names` are the names
    that take the most time, each with its sums and its longest event.
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
        "names": _names_found(stored, found),
    }


def _names_found(stored: TimelineEvents, found: Int64) -> list[dict[str, Any]]:
    """Sums by name, those that take the most time first."""
    names, group = unique_inverse(stored.name[found])
    duration_ns = stored.duration_ns[found]
    # Exact: float64 holds integers up to 2^53 ns, 104 days.
    total_ns = np.bincount(group, weights=duration_ns, minlength=len(names)).astype(np.int64)
    count = np.bincount(group, minlength=len(names))
    # Of each name, the longest event comes first.
    by_name = np.lexsort((-duration_ns, group))
    longest = found[by_name[np.searchsorted(group[by_name], np.arange(len(names)))]]
    return [
        {
            "name": stored.texts[names[at]],
            "count": int(count[at]),
            "total_ns": int(total_ns[at]),
            "longest": describe_event(stored, int(longest[at])),
        }
        for at in np.argsort(-total_ns, kind="stable")[:MAX_NAMES_FOUND].tolist()
    ]


def describe_event(stored: TimelineEvents, event: int, worker: int | None = None) -> dict[str, Any]:
    """One event, with its texts, and its start on the clock of a worker."""
    shift_ns = int(stored.worker_shift_ns[stored.worker if worker is None else worker])

    def text(index: int) -> str:
        return stored.texts[index] if index >= 0 else ""

    arguments = int(stored.arguments[event])
    return {
        "event": event,
        "row": int(stored.row[event]),
        "start_ns": int(stored.start_ns[event]) - shift_ns,
        "duration_ns": int(stored.duration_ns[event]),
        "kind": EventKind(int(stored.kind[event])).name.lower(),
        "name": text(int(stored.name[event])),
        "module": text(int(stored.module[event])),
        "line": text(int(stored.line[event])),
        "arguments": json.loads(stored.argument_texts[arguments]) if arguments >= 0 else [],
    }


def linked_events(
    stored: TimelineEvents, event: int, worker: int | None = None
) -> list[dict[str, Any]]:
    """The events that one comes from and leads to, with what they are to it as `link`.

    `launch`, `operator` and `forward` are what it comes from; `work` is what a launch, or an
    operator, has the device do, and `backward` the nodes of a forward operator.
    """
    source, operator = int(stored.source[event]), int(stored.operator[event])
    is_device = stored.track_is_device[int(stored.track[event])]
    found: list[tuple[str, int]] = []
    if source >= 0:
        found.append(("launch" if is_device else "forward", source))
    if operator >= 0:
        found.append(("operator", operator))
    if not is_device:
        from_it = np.flatnonzero(stored.source == event)
        is_work = stored.track_is_device[stored.track[from_it]]
        found += [("backward", at) for at in from_it[~is_work].tolist()]
        of_it = np.flatnonzero(stored.is_work & (stored.operator == event))
        found += [("work", at) for at in np.union1d(from_it[is_work], of_it).tolist()]
    return [{"link": link, **describe_event(stored, at, worker)} for link, at in found[:MAX_LINKED]]


def _boxes(stored: TimelineEvents, begin_ns: int, end_ns: int, bins: int, max_boxes: int) -> _Boxes:
    inside = np.flatnonzero(stored.is_inside(begin_ns, end_ns))
    start_ns, duration_ns, row = (
        column[inside] for column in (stored.start_ns, stored.duration_ns, stored.row)
    )
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
            total_ns = overlap_ns(intervals, edges[:-1], edges[1:])
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
        for finding in distinct(stored.claim_finding).tolist()
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


# At most a few hundred kilobytes of JSON, about the size of the page's own code.
MAX_FINDINGS = 10
MAX_ROWS = 3
BOXES_OF_STEP = 4_000
BOXES_OF_WHOLE = 2_000
BOXES_OF_EVIDENCE = 150
_BINS = 1_024
# Share of the view that the event fills: at first, and after zooming out once.
_FILLS = (1 / 2, 1 / 6)
_NARROWEST_NS = 2_000


def make_timelines(
    findings: Sequence[model.FindingInfo], stored: TimelineEvents
) -> list[dict[str, Any]]:
    """Make the parts of the timeline that the page has.

    Findings are in the report's order. Results are those of `select_window`: a typical step,
    everything, and for the first findings the step in which each costs time, and one for each of
    the first events in each list of their evidence.
    """
    ranges = [
        (*typical_range(stored), stored.worker, BOXES_OF_STEP),
        (0, max(stored.whole_ns, 1), stored.worker, BOXES_OF_WHOLE),
        *(
            (*typical_range(stored, place), stored.worker, BOXES_OF_STEP)
            for place in _analyzed_places(findings[:MAX_FINDINGS])
        ),
        *(
            (from_ns, to_ns, row.worker, BOXES_OF_EVIDENCE)
            for finding in findings[:MAX_FINDINGS]
            for evidence in finding.evidence
            if isinstance(evidence, model.EventsEvidence)
            for position, row in enumerate(evidence.rows[:MAX_ROWS])
            for from_ns, to_ns in _ranges(row, _FILLS if position == 0 else _FILLS[:1])
        ),
    ]
    # Findings share evidence.
    return [
        select_window(stored, from_ns, to_ns, _BINS, worker=worker, max_boxes=boxes)
        for from_ns, to_ns, worker, boxes in dict.fromkeys(ranges)
    ]


def _analyzed_places(findings: Sequence[model.FindingInfo]) -> list[int]:
    """The places by which the timeline names findings."""
    return [
        place if finding.analyzed_place is None else finding.analyzed_place
        for place, finding in enumerate(findings)
    ]


def _ranges(row: model.EvidenceRow, fills: Sequence[float]) -> Iterator[tuple[int, int]]:
    narrowest = max(row.duration_ns / _FILLS[0], _NARROWEST_NS)
    for fill in fills:
        span_ns = narrowest * _FILLS[0] / fill
        # The tab rounds the range it asks for: add a nanosecond at either end.
        from_ns = max(int(row.start_ns + row.duration_ns / 2 - span_ns / 2) - 1, 0)
        yield from_ns, from_ns + int(span_ns) + 3
