"""What a step sends: the collectives that steps launch, wherever they run.

The device may be steps behind the host. A window of the recording then holds collectives of steps
that were launched before it, of which nothing but the time is known, and the end of the recording
may lack those that the last step launched. Bytes per step come from whole steps only.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.core.causes import Cause
from tb_perfadvisor.signals.core.collectives import (
    Collectives,
    collective_rows_of,
    describe_collectives,
)
from tb_perfadvisor.signals.core.steps.launched_work import owner_by_time
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.ranks.ranks import ranks_of
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.trace.tables import Int32, Int64


class StepMessages(Struct, frozen=True):
    """The collectives of one operation that complete steps launched."""

    collectives: Collectives
    """In order of start. Those that ran outside the used window count as not exposed."""
    steps: int
    """Number of complete steps."""

    @property
    def bytes_per_step(self) -> int:
        """Sum of their sizes in a step."""
        return int(self.collectives.size_bytes.sum()) // self.steps


@memoized
def step_messages(signals: Signals, operation: str) -> StepMessages | None:
    """The collectives of an operation by the steps that launched them.

    A step is complete if all of them have sizes, and if the device events that it launched were
    recorded. None without a complete step that has such collectives.
    """
    trace = signals.trace
    table, events = trace.collectives, trace.events
    if trace.totals is not None:
        return None
    slots = collective_rows_of(trace, signals.device.index)
    at = launched_ns(signals, table.row[slots])
    step = step_at(signals, at)
    operations = np.array(trace.texts(table.operation[slots]), dtype=object)
    is_incomplete = ((operations == operation) & (table.size_bytes[slots] < 0)) | (
        (operations == "unknown") & (events.launched_by[table.row[slots]] < 0) & (at >= 0)
    )
    complete = np.ones(signals.steps.count, dtype=bool)
    complete[step[is_incomplete & (step >= 0)]] = False
    complete[_lost_launches(signals)] = False
    keep = (step >= 0) & (operations == operation)
    keep[keep] = complete[step[keep]]
    if not keep.any():
        return None
    return StepMessages(
        describe_collectives(
            trace,
            slots[keep],
            signals.attribution.intervals[Cause.COMMUNICATION],
            ranks_of(signals).transfers_of(signals.worker),
            trace.source.world_size,
        ),
        int(complete.sum()),
    )


def launched_ns(signals: Signals, rows: Int32) -> Int64:
    """When each collective was launched: -1 if that was not recorded.

    Where no launches are recorded at all, a collective belongs to the step that it runs in.
    """
    events = signals.trace.events
    launch = events.launched_by[rows]
    by_launch = np.where(launch >= 0, events.start_ns[launch], -1)
    is_own = (events.kind[rows] == EventKind.HOST_COLLECTIVE) | ~(launch >= 0).any()
    return np.where(is_own, events.start_ns[rows], by_launch)


def step_at(signals: Signals, at_ns: Int64) -> Int64:
    """The used step of each moment on the host; -1 outside of them."""
    steps = signals.steps
    if len(steps) == 0:
        inside = (at_ns >= steps.window_start_ns) & (at_ns < steps.window_end_ns)
        return np.where(inside, 0, -1)
    return owner_by_time(steps.host_start_ns, steps.host_end_ns, at_ns)


def _lost_launches(signals: Signals) -> NDArray[np.int64]:
    """Steps with launches after the last one whose device event was recorded."""
    events = signals.trace.events
    linked = distinct(events.launched_by)
    linked = linked[linked >= 0]
    if not len(linked):
        return np.empty(0, dtype=np.int64)
    launches = signals.trace.rows(EventKind.LAUNCH)
    last_ns = events.start_ns[linked].max()
    step = step_at(signals, events.start_ns[launches[events.start_ns[launches] > last_ns]])
    return distinct(step[step >= 0])
