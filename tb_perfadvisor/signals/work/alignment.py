"""Sizes of matrix products that are not aligned to what tensor cores read at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.work.matrix_kernels import MatrixKernels
from tb_perfadvisor.signals.work.roofline import NUMBER_FORMATS, roofline
from tb_perfadvisor.trace import KernelFamily
from tb_perfadvisor.trace.columns import TextColumn
from tb_perfadvisor.trace.tables import Int64

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
