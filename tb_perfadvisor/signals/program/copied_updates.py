"""Copies on the CPU of arguments that a program updates in place, and how long they take."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tb_perfadvisor.signals.device.device_work import work_rows
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.program.updates import Update, updates
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation, executions
from tb_perfadvisor.trace.integer_groups import is_in, row_mask
from tb_perfadvisor.trace.intervals import Intervals, clip, minus, union
from tb_perfadvisor.trace.tables import Int32, Int64


class Copies(NamedTuple):
    """The copies of arguments, and when nothing else runs meanwhile."""

    operations: tuple[XlaOperation, ...]
    rows: Int32
    """Their executions in the used window, in order of start."""
    time: Intervals


def undonated(signals: Signals) -> list[Update]:
    """Large arguments that are updated in place, but in a new copy."""
    return [u for u in updates(signals) if u.how == "in-place" and not u.is_aliased]


@memoized
def copies_on_cpu(signals: Signals) -> Copies | None:
    """The copies that donating makes needless; None if there are none, or not on the CPU.

    XLA shares a large copy among threads, and the profile shows what the first of them does. The
    last marks the end. It may run a reader of the array before it does.
    """
    if not signals.device.is_host_only:
        return None
    copies: dict[int, XlaOperation] = {}
    ends: list[tuple[Int32, Int64]] = []
    for update in undonated(signals):
        operations = update.running.operations.values()
        for copy in update.running.of(update.rows):
            if copy.opcode == "copy":
                copies[copy.op] = copy
                readers = [o for o in operations if copy.name in o.instruction.operand_names]
                ends.append(_ends(signals, copy, readers))
    if not copies:
        return None
    events, work = signals.trace.events, work_rows(signals)
    rows = np.concatenate([rows for rows, _ in ends])
    time = union(events.start_ns[rows], np.concatenate([ends_ns for _, ends_ns in ends]))
    time = clip(time, signals.attribution.window_start_ns, signals.attribution.window_end_ns)
    others = work[~row_mask(len(events), rows)[work]]
    return Copies(
        tuple(copies.values()),
        np.sort(rows),
        minus(time, union(events.start_ns[others], events.end_ns[others])),
    )


def _ends(signals: Signals, copy: XlaOperation, readers: list[XlaOperation]) -> tuple[Int32, Int64]:
    """Executions of a copy, and when each has ended: marked, or seen by a reader's start."""
    events, rows = signals.trace.events, executions(signals, [copy])
    marks = [i for i, text in enumerate(signals.trace.strings) if text == f"end: {copy.name}"]
    marked_ns = np.sort(events.start_ns[is_in(events.name, marks)])
    reader_ns = np.sort(events.start_ns[executions(signals, readers)])
    starts_ns, own_ns = events.start_ns[rows], events.end_ns[rows]
    again_ns = np.append(starts_ns[1:], signals.attribution.window_end_ns)
    marked_ns, reader_ns = (
        _first_after(times_ns, starts_ns) for times_ns in (marked_ns, reader_ns)
    )
    is_marked = marked_ns <= again_ns
    ends_ns = np.where(is_marked, np.minimum(marked_ns, reader_ns), own_ns)
    return rows, np.maximum(ends_ns, own_ns)


def _first_after(times_ns: Int64, starts_ns: Int64) -> Int64:
    """The first of some sorted times at or after each start; far in the future if there is none."""
    later_ns = np.append(times_ns, np.iinfo(np.int64).max)
    first_ns: Int64 = later_ns[np.searchsorted(later_ns, starts_ns)]
    return first_ns
