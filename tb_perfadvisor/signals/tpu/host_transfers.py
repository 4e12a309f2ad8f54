"""What a TPU program exchanges with the host in its midst, and the time that the core waits.

XLA sends arrays to the host and receives what comes back by `send`, `send-done`, `recv` and
`recv-done` that are marked `is_host_transfer=true`. JAX makes them of callbacks into Python,
TensorFlow of what it keeps outside of compilation. Transfers between slices go through the host
too, to another slice's devices: those are communication.
"""

from __future__ import annotations

import re

import numpy as np

from tb_perfadvisor.signals.core.attribution import Cause
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation, executions, xla_operations
from tb_perfadvisor.trace.intervals import Intervals, intersect, union
from tb_perfadvisor.trace.tables import Int32

_TRANSFERS = ("send", "send-done", "recv", "recv-done")
# Searched for as text: few programs need it, and `re` keeps what it has compiled.
_CHANNEL = r"channel_id=(\d+)"


@memoized
def host_transfers(signals: Signals) -> tuple[XlaOperation, ...]:
    """Sends to the program's own host and receives from it, the costliest first."""
    return tuple(
        one
        for one in xla_operations(signals)
        if one.opcode in _TRANSFERS
        and "is_host_transfer=true" in one.instruction.attributes
        and "megascale" not in one.instruction.attributes
    )


@memoized
def transfer_rows(signals: Signals) -> Int32:
    """What executes them in the used window."""
    transfers = host_transfers(signals)
    return executions(signals, transfers) if transfers else np.empty(0, dtype=np.int32)


@memoized
def transfer_waits(signals: Signals) -> Intervals:
    """The time of the used window in which the core does nothing but wait for them."""
    events, rows = signals.trace.events, transfer_rows(signals)
    waits = union(events.start_ns[rows], events.end_ns[rows])
    return intersect(signals.attribution.intervals[Cause.COPIES], waits)


def channel_of(operation: XlaOperation) -> str:
    """What a transfer and its `-done` have in common; empty when unknown."""
    found = re.search(_CHANNEL, operation.instruction.attributes)
    return found[1] if found else ""
