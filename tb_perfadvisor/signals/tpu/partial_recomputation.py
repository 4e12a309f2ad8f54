"""XLA fusions of the backward pass that also recompute activations."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tb_perfadvisor.signals.device.recomputation import recomputation, rematted_share
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.product_time import product_time_ns
from tb_perfadvisor.signals.tpu.xla_operations import executions, xla_operations
from tb_perfadvisor.trace.integer_groups import is_in
from tb_perfadvisor.trace.tables import Int32, Int64


class PartialRecomputation(NamedTuple):
    """Executions of fusions that also recompute; columns of shape (n,)."""

    rows: Int32
    recomputed_ns: Int64
    """Time beyond the product's own, by the share of what is inside that is recomputed."""


@memoized
def partial_recomputation(signals: Signals) -> PartialRecomputation:
    """Executions of fusions that recompute activations beside other work; none unless on a TPU."""
    size = len(signals.trace.hlo.name)
    share, product_ns = np.zeros((2, size))
    operations = []
    for operation in xla_operations(signals):
        share[operation.op] = rematted_share(operation.inside_paths)
        if share[operation.op]:
            operations.append(operation)
            product_ns[operation.op] = product_time_ns(signals, operation, at_peak=True) or 0.0
    rows = executions(signals, operations)
    rows = rows[~is_in(rows, recomputation(signals).rows)]
    op, now_ns = signals.trace.operations(rows), signals.trace.events.duration_ns[rows]
    recomputed_ns = np.maximum(now_ns - product_ns[op], 0) * share[op]
    return PartialRecomputation(rows, recomputed_ns.astype(np.int64))
