"""Matrix kernels of the used window, and their estimated times in other number formats."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.hardware import Peaks
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.core.device import DeviceFacts
from tb_perfadvisor.signals.device.device_work import kernel_families, work_rows
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.work.roofline import MATRIX_FAMILIES, NUMBER_FORMATS, bits_of, roofline
from tb_perfadvisor.trace import EventKind, KernelFamily, Precision
from tb_perfadvisor.trace.columns import TextColumn
from tb_perfadvisor.trace.integer_groups import is_in, places_by_value
from tb_perfadvisor.trace.tables import Float64, Int8, Int32, Int64, UInt8

_HALF = 0.5
"""Halving the bytes per number halves the time of a memory-bound kernel."""
_LONG_NS = 50_000
"""Beginning and ending take about 5 microseconds, in any number format."""
_ON_SHARE = 0.1
"""Of a family's time in 32 bits: with the switch on, most of its products use TF32."""

# `ampere_sgemm_128x64_tn`, `cutlass_80_simt_sgemm_128x32_8x5_nn_align1`, `…_tilesize128x128x16_…`.
_TILE = regex(r"(?:_|tilesize)([1-9]\d{1,2})x([1-9]\d{1,2})(?=_|x\d)")


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


_ALIGNED_BYTES = 16
"""What tensor cores read at once: 8 elements of 16 bits, 16 of 8 bits, 4 of TF32. See NVIDIA,
"Matrix multiplication background user's guide", requirements for tensor cores."""
_BEST_BYTES = 128
"""According to the same guide, multiples of 128 bytes are best on the A100 and later GPUs."""
_ITEM_BYTES = {"tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}


def sizes_of(signals: Signals, kernels: MatrixKernels) -> Int64:
    """Sizes m, n and k of the products; shape (n, 3)."""
    return roofline(signals).sizes_of(kernels.entry)[:, 1:]


def _multiples(signals: Signals, kernels: MatrixKernels, size_bytes: int) -> Int64:
    """Elements that fill `size_bytes`, 1 for types without tensor cores; shape (n,)."""
    per_format = np.array(
        [size_bytes // _ITEM_BYTES[form] if form in _ITEM_BYTES else 1 for form in NUMBER_FORMATS]
    )
    multiples: Int64 = per_format[roofline(signals).number_format[kernels.entry]]
    return multiples


def is_misaligned_size(signals: Signals, kernels: MatrixKernels) -> NDArray[np.bool_]:
    """Whether m, n and k are contiguous in memory but not aligned; shape (n, 3)."""
    rooflines, events = roofline(signals), signals.trace.events
    sizes, multiples = sizes_of(signals, kernels), _multiples(signals, kernels, _ALIGNED_BYTES)
    is_misaligned: NDArray[np.bool_] = sizes % multiples[:, None] != 0
    # Rows of the first operand are never contiguous. In the backward pass, either operand may be
    # a transposed view, whose inner size is not contiguous.
    is_misaligned[:, 0] = False
    operator = rooflines.operator[kernels.entry]
    parent = np.where(operator >= 0, events.parent[operator], -1)
    name = np.where(parent >= 0, events.name[parent], -1).astype(np.int32)
    callers = TextColumn(signals.trace.strings, name)
    is_forward = np.array(["Backward" not in name for name in callers.texts], dtype=bool)
    is_misaligned[:, 2] &= is_forward[callers.code]
    # Convolutions do not count: libraries pad the channels of the first layer themselves.
    is_misaligned[kernels.family != KernelFamily.MATMUL] = False
    # Products with a single row or column do not count.
    is_misaligned[sizes.min(axis=1, initial=1 << 40) <= 1] = False
    return is_misaligned


def padded_sizes(
    signals: Signals, kernels: MatrixKernels, is_misaligned: NDArray[np.bool_]
) -> Int64:
    """Sizes to pad to: the best multiple if it adds little, else the smallest; shape (n, 3)."""
    sizes = sizes_of(signals, kernels)
    smallest = _multiples(signals, kernels, _ALIGNED_BYTES)[:, None]
    best = _multiples(signals, kernels, _BEST_BYTES)[:, None]
    multiple = np.where(sizes >= 16 * best, best, smallest)
    padded: Int64 = np.where(is_misaligned, -(-sizes // multiple) * multiple, sizes)
    return padded


# Mixed precision keeps these in 32 bits for numerical accuracy.
_STAYS_WIDE = (KernelFamily.OPTIMIZER, KernelFamily.SOFTMAX, KernelFamily.RANDOM, KernelFamily.SORT)
# Where nothing else is known, the name may tell the generation.
_BEFORE_MATRIX_UNITS = regex("Fermi|Kepler|Maxwell|Pascal")
_VOLTA = (7, 0)


class WorkFor16Bits(Struct, frozen=True):
    """Kernels that 16-bit numbers make faster; columns of shape (n,)."""

    device: str
    """Its name; empty if unknown."""
    peaks: Peaks
    flop_per_s: float
    """The device's peak in 16 bits."""
    products: MatrixKernels
    """Those that multiply 32-bit numbers."""
    rows: Int32
    """Products, and other 32-bit kernels whose traffic halves with 16-bit activations."""
    best_ns: Int64
    expected_ns: Int64
    worst_ns: Int64


def work_for_16_bits(signals: Signals, minimum_ratio: float) -> WorkFor16Bits | None:
    """The 32-bit kernels that would be faster in 16 bits, and how long they would take.

    Other kernels than products are expected to save a quarter of their time, at best half of it.

    None if the device is unknown, or its peak in 16 bits is. By the device's peaks, a product has
    to be `minimum_ratio` times faster.
    """
    facts = signals.device_facts
    peaks = facts.peaks if facts is not None else None
    narrow = _narrow_format(peaks)
    if facts is None or peaks is None or narrow is None:
        return None
    kernels = matrix_kernels(signals)
    products = kernels.select(kernels.precision == Precision.BITS_32)
    products = products.select(peak_ratio(signals, products, narrow, peaks) >= minimum_ratio)
    times = times_in_format(signals, products, narrow, peaks)
    lighter = _lighter(signals)
    lighter_ns = signals.trace.events.duration_ns[lighter]
    rows = np.concatenate((products.rows, lighter))
    order = np.argsort(rows, kind="stable")
    return WorkFor16Bits(
        facts.name,
        peaks,
        peaks.flop_per_s(narrow) or 0.0,
        products,
        rows[order],
        np.concatenate((times.best_ns, lighter_ns // 2))[order],
        np.concatenate((times.expected_ns, lighter_ns * 3 // 4))[order],
        np.concatenate((times.worst_ns, lighter_ns))[order],
    )


def _lighter(signals: Signals) -> Int32:
    """32-bit kernels whose traffic halves with 16-bit activations."""
    trace, rows = signals.trace, work_rows(signals)
    precision = np.zeros(len(trace.events), dtype=np.uint8)
    precision[signals.device.rows] = signals.precision
    stays = is_in(kernel_families(signals), (*MATRIX_FAMILIES, *_STAYS_WIDE))
    is_kernel = trace.events.kind[rows] == EventKind.KERNEL
    lighter: Int32 = rows[~stays & is_kernel & (precision[rows] == Precision.BITS_32)]
    return lighter


def _narrow_format(peaks: Peaks | None) -> str | None:
    """The 16-bit type that the device supports: bfloat16, else float16."""
    known = (form for form in ("bf16", "fp16") if peaks and peaks.flop_per_s(form))
    return next(known, None)


def may_have_matrix_units(facts: DeviceFacts) -> bool:
    """Whether a device of unknown 16-bit rate may be a GPU with matrix units."""
    is_known = facts.peaks is not None and not facts.candidates
    if facts.kind != "gpu" or is_known or _BEFORE_MATRIX_UNITS.search(facts.name):
        return False
    if facts.vendor != "nvidia" or not facts.compute_capability:
        return True
    major, minor = map(int, facts.compute_capability.split("."))
    return (major, minor) >= _VOLTA


def wide_rows(signals: Signals) -> Int32:
    """32-bit matrix kernels, or the sums of 32-bit compute of a recorder that only sums up."""
    if signals.trace.totals is not None:
        is_wide = signals.precision == Precision.BITS_32
        sums: Int32 = signals.device.rows[is_wide]
        return sums
    kernels = matrix_kernels(signals)
    return kernels.select(kernels.precision == Precision.BITS_32).rows
