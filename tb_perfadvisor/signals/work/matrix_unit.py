"""How much of a device's matrix unit its products use, by the FLOP that the profile states."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.core.attribution import BUSY
from tb_perfadvisor.signals.device.device_work import kernel_families, work_rows
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import Device, KernelFamily
from tb_perfadvisor.trace.integer_groups import is_in
from tb_perfadvisor.trace.tables import Float64, Int32
from tb_perfadvisor.units import NS_PER_S

_PRODUCTS = (KernelFamily.MATMUL, KernelFamily.CONVOLUTION, KernelFamily.ATTENTION)
KNOWN_SHARE = 0.9
"""Of the products' time: with less of it known, their use is not."""


class MatrixUnit(Struct, frozen=True):
    """The products of the used window whose FLOP are known; columns of shape (n,)."""

    row: Int32
    flop: Float64
    """Of each."""
    peak: float
    """FLOP/s of the unit in 16 bits."""
    use: float
    """Share of the peak: by counters over the whole profile, else by FLOP over the window."""
    is_counted: bool
    """Whether the hardware's counters tell."""
    time_share: float
    """Of the device's busy time, what all products take."""


@memoized
def matrix_unit(signals: Signals) -> MatrixUnit | None:
    """The matrix unit's use; None where peak, products or their FLOP are unknown."""
    facts, trace, window = signals.device_facts, signals.trace, signals.attribution
    peak = facts.peaks.flop_per_s("bf16") if facts is not None and facts.peaks is not None else None
    rows = work_rows(signals)
    rows = rows[is_in(kernel_families(signals), _PRODUCTS)]
    time_ns = int(trace.events.duration_ns[rows].sum())
    busy_ns = window.total_ns(*BUSY)
    if peak is None or not time_ns or not busy_ns:
        return None
    flop = np.append(trace.hlo.flop, np.nan)[trace.operations(rows)]
    known = flop > 0
    counted = _counted(signals)
    is_known = trace.events.duration_ns[rows[known]].sum() >= KNOWN_SHARE * time_ns
    if counted is None and not is_known:
        return None
    rows, flop = rows[known], flop[known]
    possible = peak * window.window_ns / NS_PER_S
    use = float(flop.sum() / possible) if counted is None else counted
    return MatrixUnit(rows, flop, peak, use, counted is not None, time_ns / busy_ns)


def _counted(signals: Signals) -> float | None:
    """What the device's counters say; None where there are none, which is not zero."""
    uses = (one.matrix_unit_use for one in signals.trace.devices if _is_own(one, signals))
    return next(uses, None)


def _is_own(device: Device, signals: Signals) -> bool:
    return device.index == signals.device.index
