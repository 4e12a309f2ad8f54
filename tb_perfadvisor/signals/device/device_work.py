"""Device work by what launched it, and the time that is some work's alone."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.signals.core.placement import has_ancestor
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind, KernelFamily
from tb_perfadvisor.trace.integer_groups import distinct, is_in, row_mask
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, clip, minus, overlap_ns, union
from tb_perfadvisor.trace.tables import Int32, Int64


@memoized
def work_rows(signals: Signals) -> Int32:
    """The device's work that runs in the used window, in order of start."""
    events, window = signals.trace.events, signals.attribution
    rows = signals.device.rows
    is_inside = events.start_ns[rows] < window.window_end_ns
    is_inside &= events.end_ns[rows] > window.window_start_ns
    inside: Int32 = rows[is_inside]
    return inside


@memoized
def kernel_families(signals: Signals) -> NDArray[np.uint8]:
    """`KernelFamily` of each of `work_rows`; of what is no kernel `OTHER`, of copies `COPY`."""
    trace, rows = signals.trace, work_rows(signals)
    families = trace.by_event(trace.kernels.row, trace.kernels.family, KernelFamily.OTHER)
    family: NDArray[np.uint8] = families[rows]
    family[trace.events.kind[rows] == EventKind.COPY] = KernelFamily.COPY
    return family


@memoized
def launchers(signals: Signals) -> Int32:
    """For each of `work_rows` the innermost operator that launched it; -1 where unknown."""
    return operators_of(signals, work_rows(signals))


def operators_of(signals: Signals, rows: Int32) -> Int32:
    """The innermost operator that launched each device event; -1 where none is known."""
    launch = signals.trace.events.launched_by[rows]
    return np.where(launch >= 0, signals.launching_operator[launch], np.int32(-1))


def operator_around(signals: Signals, operators: Int32) -> Int32:
    """The operator around each operator; -1 around the outermost, and for -1."""
    parent = np.where(operators >= 0, signals.trace.events.parent[operators], np.int32(-1))
    return np.where(parent >= 0, signals.launching_operator[parent], np.int32(-1))


def is_within(
    signals: Signals, operators: Int32, pattern: re.Pattern[str], kinds: Iterable[EventKind]
) -> NDArray[np.bool_]:
    """Whether an operator, or any event around it, is of some kinds and has a name that matches.

    Args:
        signals: The worker's facts.
        operators: Shape (n,); -1 is in nothing.
        pattern: Of the name, from its beginning.
        kinds: Of the event.
    """
    events = signals.trace.events
    candidates = is_in(events.kind, list(kinds))
    names = distinct(events.name[candidates])
    texts = signals.trace.strings
    matches = (pattern.match(texts[name]) is not None for name in names.tolist())
    matching = names[np.fromiter(matches, bool, len(names))]
    is_marked = candidates & is_in(events.name, matching)
    inside = has_ancestor(events.parent, np.maximum(operators, 0), is_marked)
    inside |= is_marked[operators]
    return inside & (operators >= 0)


def exclusive_time(signals: Signals, rows: Int32) -> Intervals:
    """The time of the used window in which nothing runs on the device but some of its work."""
    if len(rows) == 0:
        return EMPTY
    events, window, work = signals.trace.events, signals.attribution, work_rows(signals)
    own = union(events.start_ns[rows], events.end_ns[rows])
    own = clip(own, window.window_start_ns, window.window_end_ns)
    if _run_alone(signals, rows):
        return own
    others = work[~row_mask(len(events), rows)[work]]
    return minus(own, union(events.start_ns[others], events.end_ns[others]))


def exclusive_time_of_each(signals: Signals, rows: Int32, exclusive: Intervals) -> Int64:
    """How much of their `exclusive_time` each of some events takes; shape (n,)."""
    events, window = signals.trace.events, signals.attribution
    if not _run_alone(signals, rows):
        return time_within(signals, rows, exclusive)
    own_ns: Int64 = np.minimum(events.end_ns[rows], window.window_end_ns)
    own_ns -= np.maximum(events.start_ns[rows], window.window_start_ns)
    return own_ns


def _run_alone(signals: Signals, rows: Int32) -> bool:
    """Whether nothing runs beside these events, on a device that runs one after the other."""
    return _runs_one_by_one(signals) and bool(_is_work(signals)[rows].all())


@memoized
def _is_work(signals: Signals) -> NDArray[np.bool_]:
    """Which events are among `work_rows`; shape (events,)."""
    return row_mask(len(signals.trace.events), work_rows(signals))


@memoized
def _runs_one_by_one(signals: Signals) -> bool:
    """Whether no two of `work_rows` run at the same time, as on the core of a TPU."""
    events, rows = signals.trace.events, work_rows(signals)
    return bool((events.start_ns[rows[1:]] >= events.end_ns[rows[:-1]]).all())


def time_within(signals: Signals, rows: Int32, intervals: Intervals) -> Int64:
    """How much of some intervals each event takes."""
    events = signals.trace.events
    return overlap_ns(intervals, events.start_ns[rows], events.end_ns[rows])
