"""Candidate markers of steps, and how they are made from rows of events."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.trace import Trace, TrackKind
from tb_perfadvisor.trace.integer_groups import distinct, quantile
from tb_perfadvisor.trace.tables import Int32, Int64

MIN_REPEATS = 3
"""Two repeats could be chance."""
MIN_PERIOD_NS = 500_000
"""A shorter period is a layer, not a step."""

_PAUSE = 1.5
"""Loops whose markers follow each other without a longer distance than this many usual ones are one
loop over several epochs, or over parts of a batch."""
# Begins where a run of such characters does, so that none is looked at twice.
_NUMBER_AT_END = regex(r"(?:(?<![#\s(_])[#\s(_]+|(?<![#\s(_\d]))\d+\)?$")


class Markers(Struct, frozen=True):
    """Candidate markers in order of start."""

    source: str
    is_inferred: bool
    number: Int64
    start_ns: Int64
    end_ns: Int64
    marked_ends: bool
    track: int
    ends_with_work: bool = False
    """Whether markers that were inferred end with the work of their step, so that time may lie
    between them."""
    work_end_ns: Int64 | None = None
    """Where the step's own work ends inside its marker, before callbacks; None if not known."""
    is_range: bool = False
    """Whether they are ranges of the program that are called like steps."""
    left_out: Int64 = np.empty(0, dtype=np.int64)
    """The numbers of like markers in other loops."""
    is_on_device: bool = False
    """Whether the times are those of the device, not of the host."""


def markers_from_rows(
    trace: Trace,
    rows: Int32,
    *,
    source: str,
    is_inferred: bool,
    track: int,
    marked_ends: bool,
    number: Int64 | None = None,
    others_ns: Int64 | None = None,
) -> Markers:
    """Markers from events, with the recorded step numbers if these rise.

    Where numbers begin again after a pause, or markers of another kind come between, another loop
    begins: the longest one is taken, the last of these. Markers with the same number are parts of
    one step.

    `is_inferred` tells that the events were not made to mark steps, `marked_ends` that each ends
    with its step's work. `track` is their thread, or -1 on a device, and `number` has the numbers
    in their names, if these have any. Markers of other kinds begin at `others_ns`, rising.
    """
    start_ns, end_ns = trace.events.start_ns[rows], trace.events.end_ns[rows]
    if number is None:
        number = trace.events.step[rows].astype(np.int64)
    apart_ns = np.diff(start_ns)
    usual_ns = quantile(apart_ns, 0.5) if len(apart_ns) else 0.0
    begins = (np.diff(number) <= 0) & (apart_ns > _PAUSE * usual_ns)
    if others_ns is not None:
        before = np.searchsorted(others_ns, end_ns[:-1])
        begins |= np.searchsorted(others_ns, start_ns[1:]) > before
    bounds = np.concatenate(([0], np.flatnonzero(begins) + 1, [len(rows)]))
    length = np.diff(bounds)
    left_out = number[:0]
    if len(length) > 1 and length.max() >= MIN_REPEATS and (number >= 0).all():
        last = len(length) - 1 - int(length[::-1].argmax())
        chosen = slice(int(bounds[last]), int(bounds[last + 1]))
        left_out = np.delete(number, chosen)
        number, start_ns, end_ns = number[chosen], start_ns[chosen], end_ns[chosen]
    each = _markers_of_each(number)
    number, start_ns, end_ns = number[::each], start_ns[::each], end_ns[each - 1 :: each]
    if (number < 0).any() or len(distinct(number)) < len(number):
        number = np.arange(len(number), dtype=np.int64)
    return Markers(
        source=source,
        is_inferred=is_inferred,
        number=number,
        start_ns=start_ns,
        end_ns=end_ns,
        marked_ends=marked_ends,
        track=track,
        left_out=left_out,
    )


def _markers_of_each(number: Int64) -> int:
    """How many markers in succession have each number: those of the parts of one step."""
    begins = np.flatnonzero(np.diff(number, prepend=number[:1] - 1))
    lengths = np.diff(begins, append=len(number))
    is_same = len(begins) >= MIN_REPEATS and (lengths == lengths[0]).all()
    return int(lengths[0]) if is_same and (np.diff(number) >= 0).all() else 1


def longest_group(
    trace: Trace,
    groups: dict[tuple[str, int], list[int]],
    source: str,
    *,
    numbers: dict[int, int] | None = None,
    fewest: int = MIN_REPEATS,
) -> Markers | None:
    """Markers from the group of repeating events with the largest total time."""
    best: tuple[int, Int32, str, int] | None = None
    for (name, track), members in groups.items():
        rows = np.array(members, dtype=np.int32)
        rows = rows[np.argsort(trace.events.start_ns[rows], kind="stable")]
        rows = rows[not_overlapping(trace, rows)]
        total = int(trace.events.duration_ns[rows].sum())
        if len(rows) >= fewest and (best is None or total > best[0]):
            on_host = trace.tracks.kind[track] == TrackKind.HOST_THREAD
            best = (total, rows, name, track if on_host else -1)
    if best is None:
        return None
    _, rows, name, track = best
    number = None if numbers is None else np.array([numbers[row] for row in rows.tolist()])
    markers = markers_from_rows(
        trace,
        rows,
        source=source.format(name),
        is_inferred=True,
        track=track,
        marked_ends=False,
        number=number,
    )
    return replace(markers, is_on_device=track < 0)


def rows_by_name(trace: Trace, rows: Int32) -> dict[tuple[str, int], list[int]]:
    """Rows by their name without the step's number, and by track."""
    groups: dict[tuple[str, int], list[int]] = {}
    for row in rows.tolist():
        key = (without_number(trace.name(row)), int(trace.events.track[row]))
        groups.setdefault(key, []).append(row)
    return groups


def not_overlapping(trace: Trace, rows: Int32) -> NDArray[np.bool_]:
    """Mask of the rows that start after all earlier rows have ended: nested repeats count once."""
    end = trace.events.end_ns[rows]
    reach = np.concatenate(([-1], np.maximum.accumulate(end)[:-1]))
    return np.asarray(trace.events.start_ns[rows] >= reach)


def without_number(name: str) -> str:
    """A marker's name without the number of the step."""
    return _NUMBER_AT_END.sub("", name).strip()
