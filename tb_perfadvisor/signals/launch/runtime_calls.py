"""What XLA's runtime does on the host for a call of a compiled program.

It copies arguments that are arrays of the host, and then dispatches the program. Its events have no
code of the user inside, except for Python that traces a function, which counts as compiling.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.event_names import named
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, contains, intersect, last_before, union
from tb_perfadvisor.trace.tables import Int32

# xla/pjrt: common_pjrt_client.cc, pjrt_stream_executor_client.cc, cpu/cpu_client.cc.
_KINDS: Final = (EventKind.ANNOTATION, EventKind.LAUNCH, EventKind.COMPILE)
_DISPATCH: Final = re.compile(r"[\w:]*Executable::Execute\w*$")
_CALL: Final = re.compile(r"PjitFunction\(")
_PUT: Final = re.compile(r"DevicePut$|[\w:]*BufferFromHostBuffer\w*$")
_TRANSFER: Final = re.compile(r"H2D Dispatch$|[\w:]*TransferToDevice\w*$")


class ArgumentTransfers(Struct, frozen=True):
    """Copies of a call's arguments from the host's memory, in the used window."""

    rows: Int32
    """Events of the copies."""
    idle: Intervals
    """When the device idles, or no operation runs on the CPU, and an argument is copied."""


@memoized
def dispatching(signals: Signals) -> Intervals:
    """Idle time inside of XLA's dispatch on the step's thread."""
    rows, events = _on_step_thread(signals, _DISPATCH), signals.trace.events
    return intersect(signals.host_idle, union(events.start_ns[rows], events.end_ns[rows]))


@memoized
def argument_transfers(signals: Signals) -> ArgumentTransfers:
    """The copies of arguments that are arrays of the host; none outside of calls."""
    events = signals.trace.events
    calls, puts = _on_step_thread(signals, _CALL), _on_step_thread(signals, _PUT)
    if not len(calls) or not len(puts):
        return ArgumentTransfers(np.empty(0, dtype=np.int32), EMPTY)
    spans = union(events.start_ns[calls], events.end_ns[calls])
    is_implicit = contains(spans, events.start_ns[puts])
    # Other threads copy what the last one before them asked for.
    transfers = _rows(signals, _TRANSFER)
    asked = last_before(events.start_ns[puts], events.start_ns[transfers])
    transfers = transfers[(asked >= 0) & is_implicit[np.maximum(asked, 0)]]
    rows = signals.steps.own(np.sort(np.concatenate([puts[is_implicit], transfers])))
    copying = union(events.start_ns[rows], events.end_ns[rows])
    return ArgumentTransfers(rows, intersect(signals.host_idle, copying))


def _rows(signals: Signals, pattern: re.Pattern[str]) -> Int32:
    """Events of the host with a name of some form, in order of start."""
    rows = signals.trace.rows(*_KINDS)
    found: Int32 = rows[named(signals.trace, rows, pattern)]
    return found


def _on_step_thread(signals: Signals, pattern: re.Pattern[str]) -> Int32:
    rows = _rows(signals, pattern)
    found: Int32 = rows[signals.trace.events.track[rows] == signals.step_track]
    return found
