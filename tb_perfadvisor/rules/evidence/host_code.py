"""What the host did during some intervals, and the longest of them."""

from __future__ import annotations

import numpy as np

from tb_perfadvisor.rules.finding import Cell, Column, Span, Table
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.core.host_activity import HostActivity
from tb_perfadvisor.signals.host.self_time import SelfTime
from tb_perfadvisor.trace.intervals import Intervals


def host_code_table(
    title: str, noun: str, column: Column, code: SelfTime | HostActivity, unrecorded_ns: int
) -> Table:
    """Host code by name with its time, and a row for the time in which nothing was recorded.

    Args:
        title: Of the table.
        noun: The label of the first column.
        column: The column of the times.
        code: The events of the host.
        unrecorded_ns: The rest of the time; no row if it is not above 0.
    """
    time_ns = code.self_ns if isinstance(code, SelfTime) else code.inside_ns
    rows: list[tuple[Cell, ...]] = list(zip(code.names, code.count, time_ns, strict=True))
    if unrecorded_ns > 0:
        # Short tables show only the first rows.
        place = sum(ns >= unrecorded_ns for ns in time_ns)
        rows.insert(place, ("(not recorded: Python or native code)", None, unrecorded_ns))
    return Table(
        title,
        (Column("name", noun), Column("count", "Count", "count"), column),
        tuple(rows),
    )


def longest_stretch(title: str, signals: Signals, intervals: Intervals, note: str) -> Span:
    """The longest of some intervals, on the thread that runs the steps."""
    longest = intervals[np.argmax(intervals[:, 1] - intervals[:, 0])]
    return stretch(title, signals, longest, note)


def stretch(title: str, signals: Signals, interval: Intervals, note: str) -> Span:
    """One interval, shape (2,), on the thread that runs the steps."""
    trace, track = signals.trace, signals.step_track
    label = trace.text(int(trace.tracks.label[track])) if track >= 0 else ""
    start_ns, end_ns = interval.tolist()
    return Span(title, signals.worker, start_ns, end_ns, label, note)
