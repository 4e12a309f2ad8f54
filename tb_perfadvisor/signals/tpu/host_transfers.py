"""Transfers between a running TPU program and its host, and how long the core waits for them.

XLA sends arrays to the host and receives results with `send`, `send-done`, `recv` and `recv-done`
operations marked `is_host_transfer=true`. They come from callbacks into Python (JAX) and from
operations outside of compilation (TensorFlow). Transfers between slices also go through the host,
but they are communication and not included here.
"""

from __future__ import annotations

import re

import numpy as np

from tb_perfadvisor.signals.core.causes import Cause
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation, executions, xla_operations
from tb_perfadvisor.trace.intervals import Intervals, intersect, union
from tb_perfadvisor.trace.tables import Int32

_TRANSFERS = ("send", "send-done", "recv", "recv-done")
# Compiled on first use, because few programs need it; `re` caches it.
_CHANNEL = r"channel_id=(\d+)"


@memoized
def host_transfers(signals: Signals) -> tuple[XlaOperation, ...]:
    """Sends to the program's own host and receives from it, costliest first."""
    return tuple(
        operation
        for operation in xla_operations(signals)
        if operation.opcode in _TRANSFERS
        and "is_host_transfer=true" in operation.instruction.attributes
        and "megascale" not in operation.instruction.attributes
    )


@memoized
def transfer_rows(signals: Signals) -> Int32:
    """Executions of these transfers in the used window."""
    transfers = host_transfers(signals)
    return executions(signals, transfers) if transfers else np.empty(0, dtype=np.int32)


@memoized
def transfer_waits(signals: Signals) -> Intervals:
    """Time of the used window in which the core only waits for these transfers."""
    events, rows = signals.trace.events, transfer_rows(signals)
    waits = union(events.start_ns[rows], events.end_ns[rows])
    return intersect(signals.attribution.intervals[Cause.COPIES], waits)


def channel_of(operation: XlaOperation) -> str:
    """The channel number that a transfer shares with its `-done`; empty if unknown."""
    match = re.search(_CHANNEL, operation.instruction.attributes)
    return match[1] if match else ""
