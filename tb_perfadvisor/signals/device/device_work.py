"""Device work, the operators that launched it, and the time in which some work runs alone."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.signals.core.host_work import host_operations
from tb_perfadvisor.signals.core.placement import has_ancestor
from tb_perfadvisor.signals.core.work_operators import work_operators
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind, KernelFamily
from tb_perfadvisor.trace.integer_groups import distinct, is_in, row_mask
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, clip, minus, overlap_ns, union
from tb_perfadvisor.trace.tables import Int32, Int64


@memoized
def work_rows(signals: Signals) -> Int32:
    """Rows of device work in the used window, in order of start.

    In a program of XLA on the CPU, the operations that it executes there.
    """
    events, window = signals.trace.events, signals.attribution
    rows = host_operations(signals.trace) if signals.device.is_host_only else signals.device.rows
    is_inside = events.start_ns[rows] < window.window_end_ns
    is_inside &= events.end_ns[rows] > window.window_start_ns
    inside: Int32 = rows[is_inside]
    return inside


@memoized
def kernel_families(signals: Signals) -> NDArray[np.uint8]:
    """`KernelFamily` of each of `work_rows`: `COPY` for copies, `OTHER` for other non-kernels."""
    trace, rows = signals.trace, work_rows(signals)
    families = trace.by_event(trace.kernels.row, trace.kernels.family, KernelFamily.OTHER)
    work_families: NDArray[np.uint8] = families[rows]
    work_families[trace.events.kind[rows] == EventKind.COPY] = KernelFamily.COPY
    return work_families


@memoized
def launchers(signals: Signals) -> Int32:
    """The innermost operator that launched each of `work_rows`; -1 if unknown."""
    return operators_of(signals, work_rows(signals))


def operators_of(signals: Signals, rows: Int32) -> Int32:
    """The innermost operator whose work each device event does; -1 if unknown."""
    return work_operators(signals.trace, signals.launching_operator, rows)


def operator_around(signals: Signals, operators: Int32) -> Int32:
    """The operator around each operator; -1 for the outermost and for -1."""
    parent = np.where(operators >= 0, signals.trace.events.parent[operators], np.int32(-1))
    return np.where(parent >= 0, signals.launching_operator[parent], np.int32(-1))


def is_within(
    signals: Signals, operators: Int32, pattern: re.Pattern[str], kinds: Iterable[EventKind]
) -> NDArray[np.bool_]:
    """Whether operators are, or are inside, events of some kinds with a matching name.

    Args:
        signals: Signals of one rank.
        operators: Rows of shape (n,); the result for -1 is false.
        pattern: Matches the name from its beginning.
        kinds: Kinds of the events to match.
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
    """Time of the used window in which nothing runs on the device except these rows."""
    if len(rows) == 0:
        return EMPTY
    events, window, work = signals.trace.events, signals.attribution, work_rows(signals)
    time = union(events.start_ns[rows], events.end_ns[rows])
    time = clip(time, window.window_start_ns, window.window_end_ns)
    if _run_alone(signals, rows):
        return time
    counted = row_mask(len(events), rows) | _around(events.parent, rows)
    other_rows = work[~counted[work]]
    return minus(time, union(events.start_ns[other_rows], events.end_ns[other_rows]))


def _around(parent: Int32, rows: Int32) -> NDArray[np.bool_]:
    """Which events enclose some rows on their threads, as loops do their bodies; shape (events,).

    What a thread does inside a loop is not beside the loop.
    """
    around = np.zeros(len(parent), dtype=bool)
    above = parent[rows]
    while len(above):
        above = np.unique(above[above >= 0])
        above = above[~around[above]]
        around[above] = True
        above = parent[above]
    return around


def exclusive_time_of_each(signals: Signals, rows: Int32, exclusive: Intervals) -> Int64:
    """The part of the rows' `exclusive_time` that each row takes; shape (n,)."""
    events, window = signals.trace.events, signals.attribution
    if not _run_alone(signals, rows):
        return time_within(signals, rows, exclusive)
    clipped_ns: Int64 = np.minimum(events.end_ns[rows], window.window_end_ns)
    clipped_ns -= np.maximum(events.start_ns[rows], window.window_start_ns)
    return clipped_ns


def _run_alone(signals: Signals, rows: Int32) -> bool:
    """Whether these rows are work of a device that never runs two events at the same time."""
    return _is_sequential(signals) and bool(_is_work(signals)[rows].all())


@memoized
def _is_work(signals: Signals) -> NDArray[np.bool_]:
    """Which events are among `work_rows`; shape (events,)."""
    return row_mask(len(signals.trace.events), work_rows(signals))


@memoized
def _is_sequential(signals: Signals) -> bool:
    """Whether no two of `work_rows` run at the same time, as on the core of a TPU."""
    events, rows = signals.trace.events, work_rows(signals)
    return bool((events.start_ns[rows[1:]] >= events.end_ns[rows[:-1]]).all())


def time_within(signals: Signals, rows: Int32, intervals: Intervals) -> Int64:
    """Overlap of each event with some intervals; shape (n,)."""
    events = signals.trace.events
    return overlap_ns(intervals, events.start_ns[rows], events.end_ns[rows])
