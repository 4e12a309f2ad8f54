"""Transfers between TPU slices, over the data-center network.

XLA implements them as sends and receives that its multi-slice runtime executes on the host:
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
    """Event of the done operation, which waits."""
    op: Int32
    """Row of the `HloTable`."""
    size_bytes: Int64
    between_ns: Int64
    """Time from the start of the transfer to the wait, in which it could be hidden."""


@memoized
def cross_slice(signals: Signals) -> CrossSlice:
    """Waits for transfers between slices; excludes those whose start was not recorded."""
    size_bytes = np.full(len(signals.trace.hlo.name), -1, dtype=np.int64)
    for operation in xla_operations(signals):
        is_done = operation.opcode in ("recv-done", "send-done")
        if is_done and _RUNTIME in operation.instruction.attributes:
            size_bytes[operation.op] = _size_bytes(operation)
    pairs = async_pairs(signals)
    is_transfer = size_bytes[pairs.op] >= 0
    return CrossSlice(
        done=pairs.done[is_transfer],
        op=pairs.op[is_transfer],
        size_bytes=size_bytes[pairs.op[is_transfer]],
        between_ns=pairs.between_ns[is_transfer],
    )


def _size_bytes(operation: XlaOperation) -> int:
    """The size of the transferred array; the tuple's other elements are flags and a token."""
    arrays = (*operation.instruction.results, *operation.instruction.operands)
    sizes = (shape.elements * shape.element_bits // 8 for shape in arrays)
    return max(sizes, default=0)
