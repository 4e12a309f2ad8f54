"""Use of a device's matrix unit, from hardware counters or the FLOP that the profile records."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.core.causes import BUSY
from tb_perfadvisor.signals.device.device_work import kernel_families, time_within, work_rows
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import KernelFamily
from tb_perfadvisor.trace.integer_groups import is_in
from tb_perfadvisor.trace.intervals import single
from tb_perfadvisor.trace.tables import Float64, Int32
from tb_perfadvisor.units import NS_PER_S

_PRODUCTS = (KernelFamily.MATMUL, KernelFamily.CONVOLUTION, KernelFamily.ATTENTION)
KNOWN_SHARE = 0.9
"""Share of the products' time whose FLOP must be known to compute the use."""


class MatrixUnit(Struct, frozen=True):
    """Products of the used window with known FLOP; columns of shape (n,)."""

    row: Int32
    flop: Float64
    peak: float
    """16-bit peak of the unit in FLOP/s."""
    use: float
    """Share of the peak: from counters over the whole profile, else from FLOP in the window."""
    is_counted: bool
    """Whether `use` comes from hardware counters."""
    time_share: float
    """Share of the device's busy time that all products take."""


@memoized
def matrix_unit(signals: Signals) -> MatrixUnit | None:
    """Use of the matrix unit; None if the peak, the products or their FLOP are unknown."""
    facts, trace, window = signals.device_facts, signals.trace, signals.attribution
    peak = facts.peaks.flop_per_s("bf16") if facts is not None and facts.peaks is not None else None
    rows = work_rows(signals)
    rows = rows[is_in(kernel_families(signals), _PRODUCTS)]
    # Executions that begin or end outside of the window count with their part inside.
    inside_ns = time_within(signals, rows, single(window.window_start_ns, window.window_end_ns))
    time_ns = int(inside_ns.sum())
    busy_ns = window.total_ns(*BUSY)
    if peak is None or not time_ns or not busy_ns:
        return None
    flop = np.append(trace.hlo.flop, np.nan)[trace.operations(rows)]
    has_flop = flop > 0
    counted_use = _counted_use(signals)
    is_known = inside_ns[has_flop].sum() >= KNOWN_SHARE * time_ns
    if counted_use is None and not is_known:
        return None
    rows, flop = rows[has_flop], flop[has_flop]
    possible_flop = peak * window.window_ns / NS_PER_S
    inside_share = inside_ns[has_flop] / np.maximum(trace.events.duration_ns[rows], 1)
    use = float((flop * inside_share).sum() / possible_flop) if counted_use is None else counted_use
    return MatrixUnit(rows, flop, peak, use, counted_use is not None, time_ns / busy_ns)


def _counted_use(signals: Signals) -> float | None:
    """Use according to the device's counters; None if there are none."""
    devices = signals.trace.devices
    index = signals.device.index
    return next((device.matrix_unit_use for device in devices if device.index == index), None)
