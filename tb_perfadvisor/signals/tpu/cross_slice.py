"""Transfers between TPU slices, over the data-center network.

XLA makes them of sends and receives that its multi-slice runtime carries out on the host:
`recv-done(…), frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime"}`.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.async_pairs import async_pairs
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation, xla_operations
from tb_perfadvisor.trace.tables import Int32, Int64

_RUNTIME = "megascale"


class CrossSlice(Struct, frozen=True):
    """Waits for transfers in the used window; columns of shape (n,), in order of start."""

    done: Int32
    """Event that waits."""
    op: Int32
    """Row of the `HloTable`."""
    size_bytes: Int64
    between_ns: Int64
    """From the start of the transfer to the wait: what it was given to be hidden in."""


@memoized
def cross_slice(signals: Signals) -> CrossSlice:
    """Every wait whose start was recorded."""
    size_bytes = np.full(len(signals.trace.hlo.name), -1, dtype=np.int64)
    for one in xla_operations(signals):
        if one.opcode in ("recv-done", "send-done") and _RUNTIME in one.instruction.attributes:
            size_bytes[one.op] = _sent(one)
    pairs = async_pairs(signals)
    own = size_bytes[pairs.op] >= 0
    return CrossSlice(
        done=pairs.done[own],
        op=pairs.op[own],
        size_bytes=size_bytes[pairs.op[own]],
        between_ns=pairs.between_ns[own],
    )


def _sent(operation: XlaOperation) -> int:
    """The array's bytes: the rest of the tuple is flags and a token."""
    arrays = (*operation.instruction.results, *operation.instruction.operands)
    sizes = (shape.elements * shape.element_bits // 8 for shape in arrays)
    return max(sizes, default=0)
