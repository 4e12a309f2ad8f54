"""Matrix kernels of the used window, and their estimated times in other number formats."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.hardware import Peaks
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.work.roofline import MATRIX_FAMILIES, NUMBER_FORMATS, bits_of, roofline
from tb_perfadvisor.trace import EventKind, KernelFamily, Precision
from tb_perfadvisor.trace.integer_groups import is_in, places_by_value
from tb_perfadvisor.trace.tables import Float64, Int8, Int32, Int64, UInt8

_HALF = 0.5
"""Halving the bytes per number halves the time of a memory-bound kernel."""
_LONG_NS = 50_000
"""Beginning and ending take about 5 microseconds, in any number format."""
_ON_SHARE = 0.1
"""Of a family's time in 32 bits: with the switch on, most of its products use TF32."""

# `ampere_sgemm_128x64_tn`, `cutlass_80_simt_sgemm_128x32_8x5_nn_align1`, `…_tilesize128x128x16_…`.
_TILE = re.compile(r"(?:_|tilesize)([1-9]\d{1,2})x([1-9]\d{1,2})(?=_|x\d)")


class MatrixKernels(Struct, frozen=True):
    """Matrix products, convolutions and attention; columns of shape (n,)."""

    rows: Int32
    entry: Int64
    """Row of the `Roofline`."""
    family: UInt8
    precision: UInt8
    """`Precision` according to their names or operators."""
    tensor_cores: Int8
    """1 if they use matrix units, 0 if not, -1 if unknown."""
    duration_ns: Int64

    def select(self, mask: NDArray[np.bool_]) -> MatrixKernels:
        """The kernels that a mask selects; shape of the mask: (n,)."""
        return MatrixKernels(
            self.rows[mask],
            self.entry[mask],
            self.family[mask],
            self.precision[mask],
            self.tensor_cores[mask],
            self.duration_ns[mask],
        )


class Times(NamedTuple):
    """Estimated times of kernels, each of shape (n,)."""

    best_ns: Int64
    expected_ns: Int64
    worst_ns: Int64


@memoized
def matrix_kernels(signals: Signals) -> MatrixKernels:
    """The matrix kernels that run in the used window."""
    trace, rows, window = signals.trace, signals.device.rows, signals.attribution
    events = trace.events
    family = trace.by_event(trace.kernels.row, trace.kernels.family, KernelFamily.OTHER)[rows]
    is_matrix = is_in(family, MATRIX_FAMILIES) & (events.kind[rows] == EventKind.KERNEL)
    is_matrix &= events.start_ns[rows] < window.window_end_ns
    is_matrix &= events.end_ns[rows] > window.window_start_ns
    units = trace.by_event(trace.kernels.row, trace.kernels.tensor_cores, -1)[rows]
    return MatrixKernels(
        rows=rows[is_matrix],
        entry=np.flatnonzero(is_matrix),
        family=family[is_matrix],
        precision=signals.precision[is_matrix],
        tensor_cores=units[is_matrix],
        duration_ns=events.duration_ns[rows[is_matrix]],
    )


def times_in_format(
    signals: Signals, kernels: MatrixKernels, number_format: str, peaks: Peaks
) -> Times:
    """Estimated times of matrix kernels in another number format.

    At best, kernels take the achievable time of their shapes in that format. Matrix products are
    expected to reach the same share of it as now. Convolutions and attention may use another
    algorithm: expected is halfway between the same share and half of the current time, which 16-bit
    numbers give a memory-bound kernel. At worst, kernels save half as much. Where shapes are
    unknown, the ratio of the peaks gives the best time, and half of the current time is expected,
    or what lies between the best time and that of the bytes which the tiles of the kernel move.

    The kernels compute with wider numbers; `number_format` is one of `NUMBER_FORMATS`.
    """
    rooflines, now_ns = roofline(signals), kernels.duration_ns.astype(np.float64)
    roof_ns = rooflines.achievable_in(number_format, peaks)[kernels.entry]
    ratio = roof_ns / rooflines.achievable_ns[kernels.entry]
    by_peaks = 1 / peak_ratio(signals, kernels, number_format, peaks)
    is_known = ~np.isnan(ratio)
    same_share = now_ns * np.where(is_known, ratio, by_peaks)
    best = np.where(is_known, np.minimum(roof_ns, same_share), same_share)
    best = np.minimum(best, now_ns)
    # TF32 numbers take 32 bits in memory, so memory-bound kernels gain nothing.
    half = same_share if number_format == "tf32" else _HALF * now_ns
    half = np.where(rooflines.is_product[kernels.entry], same_share, half)
    by_tiles = _time_by_tiles(signals, kernels, number_format, peaks)
    unshaped = np.where(np.isnan(by_tiles), _HALF * now_ns, (same_share + by_tiles) / 2)
    expected = np.where(is_known, (same_share + half) / 2, np.maximum(same_share, unshaped))
    expected = np.clip(expected, best, now_ns)
    return Times(_rounded(best), _rounded(expected), _rounded((expected + now_ns) / 2))


def _time_by_tiles(
    signals: Signals, kernels: MatrixKernels, number_format: str, peaks: Peaks
) -> Float64:
    """The most time that moving the operands of long matrix products takes; NaN where unknown.

    A block that computes m x n results reads m + n numbers for 2 m n operations, if no other block
    has read them before. At its present rate a kernel does no more operations than the peak allows.
    """
    bandwidth = (peaks.memory_bandwidth_bytes_per_s or np.nan) * peaks.achievable_bandwidth
    trace, names = signals.trace, signals.trace.events.name[kernels.rows]
    inverse_tile = np.full(len(kernels.rows), np.nan)
    for name, places in places_by_value(names):
        if (tile := _TILE.search(trace.strings[name])) is not None:
            inverse_tile[places] = 1 / int(tile[1]) + 1 / int(tile[2])
    applies = (kernels.family == KernelFamily.MATMUL) & (kernels.duration_ns >= _LONG_NS)
    inverse_tile[~applies] = np.nan
    fast = (peaks.flop_per_s(number_format) or np.nan) * peaks.achievable
    flop = kernels.duration_ns / 1e9 * fast / peak_ratio(signals, kernels, number_format, peaks)
    moved_bytes = flop / 2 * inverse_tile * bits_of(number_format) / 8
    most_ns: Float64 = np.minimum(moved_bytes / bandwidth * 1e9, kernels.duration_ns)
    return most_ns


def peak_ratio(
    signals: Signals, kernels: MatrixKernels, number_format: str, peaks: Peaks
) -> Float64:
    """Peak rate in a number format relative to each kernel's current one; NaN where unknown.

    32-bit kernels count as using matrix units if that is unknown.
    """
    fast = peaks.flop_per_s(number_format)
    formats = roofline(signals).number_format[kernels.entry]
    slow = np.full(len(kernels.rows), peaks.flop_per_s("tf32") or peaks.flop_per_s("fp32"))
    slow = slow.astype(np.float64)
    slow[kernels.tensor_cores == 0] = peaks.flop_per_s("fp32", tensor=False) or np.nan
    slow[formats == NUMBER_FORMATS.index("fp64")] = peaks.flop_per_s("fp64") or np.nan
    ratio: Float64 = (fast or np.nan) * peaks.achievable / slow
    return ratio


def with_tf32(kernels: MatrixKernels) -> UInt8:
    """The families that multiply in TF32, so that the switch for them is on.

    What is slow of them is slow for its shape. Attention uses matrix units whatever the switch. A
    convolution may call a kernel that is named like a matrix product, so one kernel is no proof.
    """
    wide = kernels.select(kernels.precision == Precision.BITS_32)
    time_ns = np.bincount(wide.family, wide.duration_ns, minlength=int(max(KernelFamily)) + 1)
    fast = wide.select(wide.tensor_cores == 1)
    fast_ns = np.bincount(fast.family, fast.duration_ns, minlength=len(time_ns))
    fast_ns[KernelFamily.ATTENTION] = 0
    return np.flatnonzero(fast_ns > _ON_SHARE * time_ns).astype(np.uint8)


def fills_device(signals: Signals, kernels: MatrixKernels) -> NDArray[np.bool_]:
    """Whether kernels have a block for each multiprocessor; true if unknown. Shape (n,)."""
    facts, table = signals.device_facts, signals.trace.kernels
    multiprocessors = (facts.multiprocessors if facts else None) or 0
    blocks = signals.trace.by_event(table.row, table.grid_blocks, -1)[kernels.rows]
    fills: NDArray[np.bool_] = (blocks < 0) | (blocks >= multiprocessors)
    return fills


def _rounded(time_ns: Float64) -> Int64:
    rounded: Int64 = np.rint(time_ns).astype(np.int64)
    return rounded
