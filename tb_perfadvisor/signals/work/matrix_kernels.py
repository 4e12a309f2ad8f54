"""Matrix kernels of the used window, and what they would take in another number format."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.hardware import Peaks
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.work.roofline import MATRIX_FAMILIES, NUMBER_FORMATS, roofline
from tb_perfadvisor.trace import EventKind, KernelFamily
from tb_perfadvisor.trace.integer_groups import is_in
from tb_perfadvisor.trace.tables import Float64, Int8, Int32, Int64, UInt8

HALF = 0.5
"""What halving the bytes of numbers makes of the time of a kernel that memory bounds."""


class MatrixKernels(Struct, frozen=True):
    """Matrix products, convolutions and attention; columns of shape (n,)."""

    rows: Int32
    entry: Int64
    """Row of the `Roofline`."""
    family: UInt8
    precision: UInt8
    """`Precision` that their names or operators tell."""
    tensor_cores: Int8
    """Matrix units: 1 used, 0 not used, -1 unknown."""
    duration_ns: Int64

    def select(self, mask: NDArray[np.bool_]) -> MatrixKernels:
        """Some of them."""
        return MatrixKernels(
            self.rows[mask],
            self.entry[mask],
            self.family[mask],
            self.precision[mask],
            self.tensor_cores[mask],
            self.duration_ns[mask],
        )


class Times(NamedTuple):
    """What kernels would take, each of shape (n,)."""

    best_ns: Int64
    expected_ns: Int64
    worst_ns: Int64


@memoized
def matrix_kernels(signals: Signals) -> MatrixKernels:
    """The matrix kernels that run in the used window."""
    trace, rows, window = signals.trace, signals.device.rows, signals.attribution
    events = trace.events
    family = trace.by_event(trace.kernels.row, trace.kernels.family, KernelFamily.OTHER)[rows]
    is_own = is_in(family, MATRIX_FAMILIES) & (events.kind[rows] == EventKind.KERNEL)
    is_own &= events.start_ns[rows] < window.window_end_ns
    is_own &= events.end_ns[rows] > window.window_start_ns
    units = trace.by_event(trace.kernels.row, trace.kernels.tensor_cores, -1)[rows]
    return MatrixKernels(
        rows=rows[is_own],
        entry=np.flatnonzero(is_own),
        family=family[is_own],
        precision=signals.precision[is_own],
        tensor_cores=units[is_own],
        duration_ns=events.duration_ns[rows[is_own]],
    )


def times_in(signals: Signals, kernels: MatrixKernels, number_format: str, peaks: Peaks) -> Times:
    """What matrix kernels would take in another number format.

    At best they reach the roofline of their shapes in that format. A higher roof is harder to
    reach, so what is expected lies halfway between the same share of it as now and half of the
    time, which is what 16-bit numbers give a kernel that memory bounds; at worst half of that is
    saved. Where shapes are unknown the ratio of the peaks is best, and half of the time expected.

    Args:
        signals: The worker's facts.
        kernels: Kernels in wider numbers.
        number_format: One of `NUMBER_FORMATS`.
        peaks: The device's.
    """
    found, now_ns = roofline(signals), kernels.duration_ns.astype(np.float64)
    roof_ns = found.achievable_in(number_format, peaks)[kernels.entry]
    ratio = roof_ns / found.achievable_ns[kernels.entry]
    by_peaks = 1 / peak_ratio(signals, kernels, number_format, peaks)
    is_known = ~np.isnan(ratio)
    same_share = now_ns * np.where(is_known, ratio, by_peaks)
    best = np.where(is_known, np.minimum(roof_ns, same_share), same_share)
    best = np.minimum(best, now_ns)
    # TF32 reads and writes what 32-bit numbers do, so half of the time is no sure gain.
    half = same_share if number_format == "tf32" else HALF * now_ns
    expected = np.where(is_known, (same_share + half) / 2, np.maximum(same_share, HALF * now_ns))
    expected = np.clip(expected, best, now_ns)
    return Times(_whole(best), _whole(expected), _whole((expected + now_ns) / 2))


def peak_ratio(
    signals: Signals, kernels: MatrixKernels, number_format: str, peaks: Peaks
) -> Float64:
    """How much faster than now the device computes in a number format; NaN where unknown.

    32-bit kernels of which nobody knows whether they use matrix units count as if they did.
    """
    fast = peaks.flop_per_s(number_format)
    formats = roofline(signals).number_format[kernels.entry]
    slow = np.full(len(kernels.rows), peaks.flop_per_s("tf32") or peaks.flop_per_s("fp32"))
    slow = slow.astype(np.float64)
    slow[kernels.tensor_cores == 0] = peaks.flop_per_s("fp32", tensor=False) or np.nan
    slow[formats == NUMBER_FORMATS.index("fp64")] = peaks.flop_per_s("fp64") or np.nan
    ratio: Float64 = (fast or np.nan) * peaks.achievable / slow
    return ratio


def fills_device(signals: Signals, kernels: MatrixKernels) -> NDArray[np.bool_]:
    """Whether kernels have a block for each multiprocessor; true where nobody knows. Shape (n,)."""
    facts, table = signals.device_facts, signals.trace.kernels
    multiprocessors = (facts.multiprocessors if facts else None) or 0
    blocks = signals.trace.by_event(table.row, table.grid_blocks, -1)[kernels.rows]
    fills: NDArray[np.bool_] = (blocks < 0) | (blocks >= multiprocessors)
    return fills


def _whole(time_ns: Float64) -> Int64:
    whole: Int64 = np.rint(time_ns).astype(np.int64)
    return whole
