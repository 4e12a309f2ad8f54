"""The period of a loop that nothing marks: what holds the same work each time.

A loop with two optimizers updates twice in each iteration, and a loop that calls a model six times
in each iteration runs its program six times. What repeats inside is a part of the step: the step is
the shortest period after which all kinds of work come again in the same order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_perfadvisor.signals.core.device import DeviceTimeline
from tb_perfadvisor.signals.core.steps.marker_rows import (
    MIN_REPEATS,
    Markers,
    not_overlapping,
    rows_named,
    without_number,
)
from tb_perfadvisor.soundness.ranges import BACKWARD, UPDATES
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import row_mask, unique_inverse
from tb_perfadvisor.trace.nesting import nearest
from tb_perfadvisor.trace.tables import Int32, Int64

_LONGEST = 512
"""Parts of a step that are looked for; with more, the parts are steps."""
_LONGER = 1.25
"""Work of a longer kind takes at least this much more time than the longest of the others."""
_FEWEST_LONGER = 3
"""With nothing but their work to tell steps apart, every second of four may be longer by chance."""


def period_of(kinds: Int64) -> int:
    """After how many pieces of work all kinds come again in the same order; 0 if never."""
    for period in range(1, min(len(kinds) // 2, _LONGEST) + 1):
        if kinds[period] == kinds[0] and (kinds[period:] == kinds[:-period]).all():
            return period
    return 0


def optimizer_steps(trace: Trace, timeline: DeviceTimeline) -> Markers | None:
    """The optimizer ends a step; of several per iteration, the last one does."""
    nodes = _outermost(trace, rows_named(trace, BACKWARD, EventKind.OPERATOR))
    is_node = row_mask(len(trace.events), nodes)
    for name in UPDATES:
        rows = rows_named(trace, name, EventKind.ANNOTATION, EventKind.OPERATOR)
        rows = rows[not_overlapping(trace, rows)]
        rows = rows[nearest(trace.events.parent, is_node)[rows] < 0]
        if len(rows) >= MIN_REPEATS:
            ends_ns = trace.events.end_ns[rows]
            work = nodes if len(nodes) else _outermost(trace, trace.rows(EventKind.OPERATOR))
            kinds = _kinds_of_work(trace, work, trace.events.name[rows], ends_ns)
            return _between(f"repeats of {trace.name(int(rows[0]))}", trace, rows, ends_ns, kinds)
    return None


def backward_passes(trace: Trace, timeline: DeviceTimeline) -> Markers | None:
    """The end of each backward pass, where the optimizer runs inside of it or is not recorded."""
    events = trace.events
    nodes = _outermost(trace, rows_named(trace, BACKWARD, EventKind.OPERATOR))
    operators = trace.rows(EventKind.OPERATOR)
    is_node = row_mask(len(events), nodes)
    forward = operators[nearest(events.parent, is_node)[operators] < 0]
    if not len(nodes) or not len(forward):
        return None
    track = int(np.bincount(events.track[forward]).argmax())
    forward_ns = events.start_ns[forward[events.track[forward] == track]]
    reach_ns = np.maximum.accumulate(events.end_ns[nodes])
    # A pass ends where the next node begins after another operator.
    before = np.searchsorted(forward_ns, reach_ns[:-1])
    is_last = np.append(np.searchsorted(forward_ns, events.start_ns[nodes[1:]]) > before, True)
    ends_ns, last = reach_ns[is_last], nodes[is_last]
    if len(last) < MIN_REPEATS:
        return None
    kinds = _kinds_of_work(trace, nodes, np.zeros(len(last), dtype=np.int32), ends_ns)
    return _between("the ends of backward passes", trace, last, ends_ns, kinds)


def whole_iterations(markers: Markers, trace: Trace, own: Int32, programs: Int32) -> Markers:
    """Markers of iterations, if each runs the program that marks steps several times.

    `markers` has one for each run of the program, as `own` has a call or run for each. `programs`
    are those of all programs, by start.
    """
    texts: dict[str, int] = {}
    names, name = unique_inverse(trace.events.name[programs])
    group = [texts.setdefault(without_number(trace.strings[n]), len(texts)) for n in names.tolist()]
    kinds = np.array(group, dtype=np.int64)[name]
    period = period_of(kinds)
    is_own = row_mask(len(trace.events), own)[programs]
    if period < 2 or is_own[:period].sum() < 2 or len(own) != len(markers.start_ns):
        return markers
    # An iteration begins where the program runs after another one.
    first = int(np.flatnonzero(is_own & ~np.roll(is_own, 1))[0])
    begins = np.searchsorted(own, programs[first::period])
    if len(begins) < MIN_REPEATS:
        return markers
    start_ns = markers.start_ns[begins]
    parts = f"{int(is_own[:period].sum())} runs each"
    return replace(
        markers,
        source=f"{markers.source}, {parts}",
        number=np.arange(len(begins) - 1, dtype=np.int64),
        start_ns=start_ns[:-1],
        end_ns=start_ns[1:],
        ends_with_work=False,
    )


def _outermost(trace: Trace, rows: Int32) -> Int32:
    """Those without another one around them."""
    parent = trace.events.parent[rows]
    around = nearest(trace.events.parent, row_mask(len(trace.events), rows))
    outermost: Int32 = rows[np.where(parent >= 0, around[parent], -1) < 0]
    return outermost


def _kinds_of_work(trace: Trace, rows: Int32, names: Int32, ends_ns: Int64) -> Int64:
    """The kind of each piece of work, by its name and by which operators begin in it, how often.

    `rows` are operators, by start. `names` and `ends_ns` are of what ends each piece.
    """
    bounds = np.searchsorted(trace.events.start_ns[rows], ends_ns)
    piece = np.repeat(np.arange(len(bounds)), np.diff(bounds, prepend=0))
    time_ns = np.bincount(piece, trace.events.duration_ns[rows[: len(piece)]], len(bounds))
    is_longer = longer(time_ns)
    known: dict[tuple[int, bytes], int] = {}
    begin, found = 0, []
    for name, end in zip(names.tolist(), bounds.tolist(), strict=True):
        work = np.sort(trace.events.name[rows[begin:end]]).tobytes()
        found.append(known.setdefault((name, work), len(known)))
        begin = end
    kinds = np.array(found, dtype=np.int64)
    # Models with the same layers may differ in size.
    by_time = 2 * kinds + is_longer
    return by_time if period_of(kinds[1:]) == 1 and period_of(by_time[1:]) > 1 else kinds


def longer(work_ns: NDArray[np.number[Any]]) -> NDArray[np.bool_]:
    """Which amounts of work lie above the widest gap, if that is wide."""
    ordered = np.sort(work_ns)
    if len(ordered) <= _FEWEST_LONGER or ordered[0] <= 0:
        return np.zeros(len(work_ns), dtype=bool)
    ratio = ordered[1:] / ordered[:-1]
    widest = int(ratio.argmax())
    found: NDArray[np.bool_] = (work_ns > ordered[widest]) & (ratio[widest] >= _LONGER)
    return found if found.sum() >= _FEWEST_LONGER else np.zeros(len(work_ns), dtype=bool)


def _between(source: str, trace: Trace, rows: Int32, ends_ns: Int64, kinds: Int64) -> Markers:
    """Steps from one boundary to the next of its kind."""
    period = period_of(kinds[1:])  # the first piece may have begun before the recording
    if len(ends_ns) < (MIN_REPEATS + 1) * period:
        period = 1
    ends_ns = ends_ns[max(period, 1) - 1 :: max(period, 1)]
    if period > 1:
        source = f"{source}, {period} each"
    return Markers(
        source=source,
        is_inferred=True,
        number=np.arange(1, len(ends_ns), dtype=np.int64),
        start_ns=ends_ns[:-1],
        end_ns=ends_ns[1:],
        marked_ends=False,
        track=int(trace.events.track[rows[0]]),
    )
