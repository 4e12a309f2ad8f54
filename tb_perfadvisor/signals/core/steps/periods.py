"""The period of a loop that nothing marks: what holds the same work each time.

A loop with two optimizers updates twice in each iteration, and a loop that calls a model six times
in each iteration runs its program six times. What repeats inside is a part of the step: the step is
the shortest period after which all kinds of work come again in the same order.

Without even that, what a device does again and again is the step. Work is compared by its names, in
the order of its launches: it may take longer, and streams may run it in another order.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.core.device import DeviceTimeline
from tb_perfadvisor.signals.core.host_activity import busiest_host_track
from tb_perfadvisor.signals.core.placement import has_ancestor
from tb_perfadvisor.signals.core.steps.launched_work import is_linked, owner_by_time
from tb_perfadvisor.signals.core.steps.marker_rows import (
    MIN_PERIOD_NS,
    MIN_REPEATS,
    Markers,
    not_overlapping,
    without_number,
)
from tb_perfadvisor.soundness.ranges import BACKWARD, UPDATES
from tb_perfadvisor.trace import CopyDirection, EventKind, Trace, TrackKind
from tb_perfadvisor.trace.integer_groups import (
    distinct,
    is_in,
    places_by_value,
    row_mask,
    unique_inverse,
)
from tb_perfadvisor.trace.intervals import last_before
from tb_perfadvisor.trace.names import rows_named, short_name
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


_MATCH = 0.95
"""Share of the time that must repeat: autotuning changes a kernel here and there."""
_MIN_EVENTS = 100
"""A step takes more kernels than a transformer layer, which repeats as well: a few dozen."""
_FEWEST_SHORT = 5
"""Of shorter periods, which may be those of a helper that runs a few times."""
_COVERS = 0.9
"""Share of the kernels, or of their time, that runs in the repetitions of a program's loop. In a
loop over parts of an input, 0.87 were recorded: an encoder ran before it."""
_MOST_OTHERS = 0.1
"""Share of the repetitions in which something happens only once."""
_MOST_ANCHORS, _MOST_NAMES, _MOST_REPEATS = 16, 64, 100_000
"""Names that may divide the work, names that are told apart, and pieces that are compared."""
_COMPUTES = (EventKind.KERNEL, EventKind.COLLECTIVE, EventKind.OPERATOR)
_WITH_HOST = (CopyDirection.HOST_TO_DEVICE, CopyDirection.DEVICE_TO_HOST)

# A part of a model by its path (`FSDP::pre_forward (blocks.3.attention)`), or as PyTorch's profiler
# numbers the modules of a class (`nn.Module: Block_3`).
_NUMBERED_PART = regex(r"(?:\w\.|^nn\.Module: \w+_)(\d{1,6})(?=[.)\s]|$)")


class _Work(Struct, frozen=True):
    """What runs, in the order in which the host launched it. Columns of shape (rows,)."""

    rows: Int32
    calls: Int32
    """What launched each; the work itself if that is not known."""
    is_linked: bool
    """Whether it is known what launched the work."""
    direction: NDArray[np.uint8]
    """`CopyDirection`; 0 for other work."""
    computes: NDArray[np.bool_]
    """Whether it is more than a copy: a program copies its model before it begins."""
    name: Int64
    """Number of the name, by time: 0 for the costliest. The cheap ones share the last number."""
    time_ns: NDArray[np.float64]
    """The mean of its name, because work that takes longer than before is the same work."""

    def share(self, begin: int, end: int) -> float:
        """The larger share of some rows in all kernels, and in their time."""
        counts, time_ns = self.computes, self.computes * self.time_ns
        part = counts[begin:end].sum() / counts.sum()
        return float(max(part, time_ns[begin:end].sum() / max(time_ns.sum(), 1)))


def repetitions(trace: Trace, timeline: DeviceTimeline) -> Markers | None:
    """The shortest period after which a device, or else the host, does the same work again."""
    work = _work_of(trace, timeline)
    places = [at for anchors in _anchors(trace, work) for at in (anchors, _odd(work, anchors))]
    found = [bounds for at in places if len(bounds := _loop_by(trace, work, at))]
    longest = max(found, key=len, default=None)
    if longest is None or _repeats_parts(trace, len(longest) - 1):
        return None
    return _markers_of(trace, timeline, work, longest)


def _work_of(trace: Trace, timeline: DeviceTimeline) -> _Work:
    events, rows = trace.events, timeline.rows
    has_calls = is_linked(trace, timeline)
    if has_calls:
        rows = rows[events.launched_by[rows] >= 0]
        called_ns = events.start_ns[events.launched_by[rows]]
        rows = rows[np.lexsort((events.start_ns[rows], called_ns))]
    elif not len(rows):
        rows = trace.rows(EventKind.OPERATOR)
        rows = rows[events.track[rows] == busiest_host_track(trace)]
        # Calls of the framework around operators, such as those of `TFE_Py_FastPathExecute_C`, are
        # events of their own.
        rows = rows[~has_ancestor(events.parent, rows, events.kind == EventKind.OPERATOR)]
    names, name = unique_inverse(events.name[rows])
    time_ns = np.bincount(name, events.duration_ns[rows], len(names))
    rank = np.argsort(np.argsort(-time_ns, kind="stable"), kind="stable")
    return _Work(
        rows=rows,
        calls=events.launched_by[rows] if has_calls else rows,
        is_linked=has_calls,
        direction=trace.by_event(trace.copies.row, trace.copies.direction, 0)[rows],
        computes=is_in(events.kind[rows], _COMPUTES),
        name=np.minimum(rank, _MOST_NAMES)[name],
        time_ns=(time_ns / np.maximum(np.bincount(name, minlength=len(names)), 1))[name],
    )


def _anchors(trace: Trace, work: _Work) -> list[Int64]:
    """Where names occur that may divide the work into periods, the rarest first."""
    by_count: dict[int, Int64] = {}
    computes = np.flatnonzero(work.computes)
    for _, places in places_by_value(trace.events.name[work.rows[computes]]):
        at = computes[places]
        if MIN_REPEATS <= len(at) <= _MOST_REPEATS and work.share(int(at[0]), int(at[-1])) > 0.5:
            by_count.setdefault(len(at), at)
    return [by_count[count] for count in sorted(by_count)[:_MOST_ANCHORS]]


def _loop_by(trace: Trace, work: _Work, at: Int64) -> Int64:
    """The bounds of periods in which a name occurs once, if they are those of a loop; else none."""
    anchors = _alike(work, at, MIN_REPEATS - 1)
    if not len(anchors):
        return anchors
    bounds = _alike(work, _from_pause(trace, work, anchors), MIN_REPEATS)
    return bounds if len(bounds) and _is_loop(trace, work, bounds) else bounds[:0]


def _held_ns(work: _Work, bounds: Int64) -> NDArray[np.float64]:
    """The time of each name between bounds. Shape (bounds - 1, names)."""
    count, width = len(bounds) - 1, int(work.name.max()) + 1
    inside = slice(int(bounds[0]), int(bounds[-1]))
    cell = np.repeat(np.arange(count), np.diff(bounds)) * width + work.name[inside]
    held_ns = np.bincount(cell, work.time_ns[inside], count * width)
    return held_ns.astype(np.float64).reshape(count, width)


def _odd(work: _Work, bounds: Int64) -> Int64:
    """Those after which other work follows than after most: between layers, the head of a model."""
    held_ns = _held_ns(work, bounds)
    odd: Int64 = bounds[:-1][~_same(held_ns, np.median(held_ns, axis=0))]
    return odd


def _alike(work: _Work, bounds: Int64, fewest: int) -> Int64:
    """Those between which the work is the same, but for what happens only once; none if too few."""
    if len(bounds) <= fewest:
        return bounds[:0]
    held_ns = _held_ns(work, bounds)
    is_alike = _same(held_ns, np.median(held_ns, axis=0))
    # What happens once lies between two that are alike.
    joins = is_alike | (np.append(is_alike[1:], False) & np.append(False, is_alike[:-1]))
    edges = np.flatnonzero(np.diff(np.concatenate(([0], joins.astype(np.int8), [0]))))
    runs = edges.reshape(-1, 2).tolist()
    first, last = max(runs, key=lambda run: run[1] - run[0], default=(0, 0))
    others = held_ns[first:last][~is_alike[first:last]]
    # What recurs belongs to a longer period: the head of a model, which follows all layers.
    recurs = any(_same(others, other).sum() >= MIN_REPEATS for other in others[:_MOST_NAMES])
    if last - first < fewest or len(others) > _MOST_OTHERS * (last - first) or recurs:
        return bounds[:0]
    return bounds[first : last + 1]


def _same(held_ns: NDArray[np.number[Any]], usual_ns: NDArray[np.number[Any]]) -> NDArray[np.bool_]:
    """Whether pieces hold the same work as another one, by the time of each name."""
    differs_ns = np.abs(held_ns - usual_ns).sum(axis=1)
    longer_ns = np.maximum(held_ns.sum(axis=1), usual_ns.sum())
    same: NDArray[np.bool_] = differs_ns <= (1 - _MATCH) * longer_ns
    return same


def _from_pause(trace: Trace, work: _Work, anchors: Int64) -> Int64:
    """The bounds of the same periods, each at the first work after the host's longest pause.

    In a pause, the host may wait for the device, or prepare input. A copy to the host ends a
    period.
    """
    usual = int(np.sort(np.diff(anchors))[(len(anchors) - 1) // 2])
    is_end = work.direction == CopyDirection.DEVICE_TO_HOST
    start_ns, end_ns = trace.events.start_ns[work.calls], trace.events.end_ns[work.calls]
    returned_ns = np.maximum.accumulate(np.where(is_end, start_ns[0], end_ns))
    pause_ns = start_ns - np.append(start_ns[:1], returned_ns[:-1])
    pause_ns[is_end] = -1
    is_usual = np.diff(anchors) == usual
    places = anchors[:-1][is_usual, None] + np.arange(usual)
    bounds = anchors + int(np.median(pause_ns[places], axis=0).argmax())
    # Where something happens once, the same work may have another place.
    name = trace.events.name[work.rows]
    pause_ns[name != name[bounds[:-1][is_usual][0]]] = -1
    for period in np.flatnonzero(~is_usual).tolist():
        begin, end = anchors[period : period + 2].tolist()
        bounds[period] = begin + int(pause_ns[begin:end].argmax())
    bounds = np.concatenate(([bounds[0] - usual], bounds, [bounds[-1] + usual]))
    return bounds[(bounds >= 0) & (bounds <= len(work.rows))]


def _is_loop(trace: Trace, work: _Work, bounds: Int64) -> bool:
    """Whether periods are those of a program's loop, and not the layers of a model.

    A loop covers nearly all work. In each period, the host waits for the device or copies to or
    from it, or else the period is longer than a layer. Of operators, half of that length is enough
    if none runs outside of the periods.
    """
    begin_ns = trace.events.start_ns[work.calls[bounds[:-1]]]
    apart_ns = np.diff(begin_ns)
    if apart_ns.min() <= 0 or work.share(int(bounds[0]), int(bounds[-1])) < _COVERS:
        return False
    # An operator is one or more kernels. Layers have something beside them: an embedding, a head.
    is_all = bounds[0] == 0 and bounds[-1] == len(work.rows) and len(begin_ns) >= _FEWEST_SHORT
    is_host_only = trace.events.kind[work.rows[0]] == EventKind.OPERATOR
    fewest = _MIN_EVENTS // 2 if is_all and is_host_only else _MIN_EVENTS
    if np.median(np.diff(bounds)) >= fewest and np.median(apart_ns) >= MIN_PERIOD_NS:
        return True
    if len(begin_ns) < _FEWEST_SHORT or not work.is_linked:
        return False
    copies = np.flatnonzero(is_in(work.direction[: bounds[-1]], _WITH_HOST))
    waits_ns = trace.events.start_ns[trace.rows(EventKind.SYNCHRONIZE)]
    periods = np.concatenate((last_before(bounds[:-1], copies), last_before(begin_ns, waits_ns)))
    return len(distinct(periods[periods >= 0])) >= _MATCH * len(begin_ns)


def _markers_of(trace: Trace, timeline: DeviceTimeline, work: _Work, bounds: Int64) -> Markers:
    """Markers from the first launch of each period to the last launch or wait in it.

    If the host is ahead of the device where the last period ends, that end is unknown.
    """
    events, calls = trace.events, work.calls[bounds[0] : bounds[-1]]
    costliest = trace.name(int(work.rows[bounds[0] + work.name[bounds[0] : bounds[-1]].argmin()]))
    what = "kernels and copies" if len(timeline.rows) else "operators"
    each = f"{int(np.median(np.diff(bounds)))} {what}, mostly {short_name(costliest)}"
    source = f"{len(bounds) - 1} repetitions of {each}"
    start_ns = events.start_ns[work.calls[bounds[:-1]]]
    track = int(np.bincount(events.track[calls]).argmax())
    on_host = np.concatenate((calls, trace.rows(EventKind.SYNCHRONIZE)))
    on_host = on_host[events.track[on_host] == track]
    after_ns = events.start_ns[work.calls[bounds[-1] :]]
    until_ns = int(after_ns[0]) if len(after_ns) else np.iinfo(np.int64).max
    period = owner_by_time(start_ns, np.append(start_ns[1:], until_ns), events.start_ns[on_host])
    end_ns = start_ns.copy()
    np.maximum.at(end_ns, period[period >= 0], events.end_ns[on_host[period >= 0]])
    if not work.is_linked:
        end_ns[:-1] = start_ns[1:]
    is_ahead = end_ns[-1] < events.end_ns[work.rows[bounds[-2] : bounds[-1]]].max()
    count = len(start_ns) - int(is_ahead and len(start_ns) > MIN_REPEATS)
    return Markers(
        source=source,
        is_inferred=True,
        number=np.arange(count, dtype=np.int64),
        start_ns=start_ns[:count],
        end_ns=end_ns[:count],
        marked_ends=False,
        track=track if trace.tracks.kind[track] == TrackKind.HOST_THREAD else -1,
        ends_with_work=work.is_linked,
        is_on_device=len(timeline.rows) > 0 and not work.is_linked,
    )


def _repeats_parts(trace: Trace, periods: int) -> bool:
    """Whether each period runs the next of a model's numbered parts: layers of a single step."""
    rows = trace.rows(EventKind.ANNOTATION, EventKind.PYTHON)
    ids, name = unique_inverse(trace.events.name[rows])
    numbers: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)
    for index, text in enumerate(trace.texts(ids)):
        for found in _NUMBERED_PART.finditer(text):
            numbers[text[: found.start(1)], text[found.end(1) :]][index] = int(found[1])
    for number in numbers.values():
        if len(number) < MIN_REPEATS or not periods <= 2 * len(number) <= 4 * periods:
            continue
        runs = [number[index] for index in name[np.isin(name, [*number])].tolist()]
        # A step that ran twice would run each of them twice.
        if {*np.diff(runs).tolist()} in ({1}, {-1}):
            return True
    return False
