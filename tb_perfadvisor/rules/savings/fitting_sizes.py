"""What the steps save when XLA operations have sizes that fit the TPU's tiles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.rules.finding import Saving
from tb_perfadvisor.rules.savings.faster_device_work import faster_device_work
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.device.device_work import work_rows
from tb_perfadvisor.signals.tpu.fitting_sizes import FittedOperation
from tb_perfadvisor.trace.integer_groups import is_in
from tb_perfadvisor.trace.tables import Int32


def executions_of(signals: Signals, ops: Sequence[int]) -> Int32:
    """Executions of some rows of the `HloTable` on the device."""
    hlo = signals.trace.hlo_events
    is_chosen = np.zeros(len(signals.trace.hlo.name), dtype=bool)
    is_chosen[list(ops)] = True
    rows = hlo.row[is_chosen[hlo.op]]
    used: Int32 = rows[is_in(rows, work_rows(signals))]
    return used


def saving_of_fitting_sizes(signals: Signals, fitted: Sequence[FittedOperation]) -> Saving:
    """What sizes that fit save."""
    rows = executions_of(signals, [found.op for found in fitted])
    now_ns, op = signals.trace.events.duration_ns[rows], signals.trace.operations(rows)
    least, expected, most = np.zeros((3, len(signals.trace.hlo.name)))
    for found in fitted:
        shares = found.least_share, found.saved_share, found.most_share
        least[found.op], expected[found.op], most[found.op] = shares
    return faster_device_work(
        signals,
        rows,
        _rounded(now_ns * (1 - expected[op])),
        basis="modeled",
        least_then_ns=_rounded(now_ns * (1 - most[op])),
        most_then_ns=_rounded(now_ns * (1 - least[op])),
    )


def _rounded(lengths_ns: NDArray[np.float64]) -> NDArray[np.int64]:
    """Round the running sum, so that the total is off by at most a nanosecond."""
    return np.diff(np.rint(np.cumsum(lengths_ns)), prepend=0).astype(np.int64)
