"""32-bit work of a device, and how long it would take in 16 bits."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from tb_perfadvisor.hardware import Peaks
from tb_perfadvisor.signals.core.device import DeviceFacts
from tb_perfadvisor.signals.device.device_work import kernel_families, work_rows
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.work.matrix_kernels import (
    MatrixKernels,
    matrix_kernels,
    peak_ratio,
    times_in_format,
)
from tb_perfadvisor.signals.work.roofline import MATRIX_FAMILIES
from tb_perfadvisor.trace import EventKind, KernelFamily, Precision
from tb_perfadvisor.trace.integer_groups import is_in
from tb_perfadvisor.trace.tables import Int32, Int64

# Mixed precision keeps these in 32 bits for numerical accuracy.
_STAYS_WIDE = (KernelFamily.OPTIMIZER, KernelFamily.SOFTMAX, KernelFamily.RANDOM, KernelFamily.SORT)
# Where nothing else is known, the name may tell the generation.
_BEFORE_MATRIX_UNITS = re.compile("Fermi|Kepler|Maxwell|Pascal")
_VOLTA = (7, 0)


class WorkFor16Bits(NamedTuple):
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
    order = np.argsort(rows)
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
