"""Unfused attention where no shapes were recorded: a softmax between two products.

Between the product that computes the scores and the one that consumes them, only memory-bound
kernels run: scaling, mask, softmax, dropout and casts, or their gradients. A fused kernel keeps the
scores on the chip: these kernels go, and the products stay.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.device.device_work import kernel_families, launchers, work_rows
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind, KernelFamily
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.tables import Int32, Int64

_ON_SCORES: Final = (
    KernelFamily.SOFTMAX,
    KernelFamily.ELEMENTWISE,
    KernelFamily.COPY,
    KernelFamily.RANDOM,
)
_MOST_BETWEEN: Final = 12
"""Kernels on the scores: scale, mask, casts, softmax, dropout and its mask, in both widths."""


class OrderedAttention(Struct, frozen=True):
    """Memory-bound kernels on the scores; columns of shape (n,), in order of start."""

    rows: Int32
    layer: Int64
    """The execution of an attention layer that each belongs to, forward or backward; from 0."""


@cache
def _other_softmax() -> re.Pattern[str]:
    # The last layer of a classifier and its loss.
    return re.compile(r"(?i)log_?soft_?max")


@memoized
def attention_by_order(signals: Signals) -> OrderedAttention:
    """Kernels on the scores of unfused attention in the used window; none if shapes are known."""
    trace, events, rows = signals.trace, signals.trace.events, work_rows(signals)
    families = kernel_families(signals)
    none = OrderedAttention(np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int64))
    if (trace.operators.shapes >= 0).any() or not (families == KernelFamily.SOFTMAX).any():
        return none
    is_kernel = events.kind[rows] == EventKind.KERNEL
    index = np.flatnonzero(is_kernel)
    index = index[np.lexsort((events.start_ns[rows[index]], events.track[rows[index]]))]
    family, track = families[index], events.track[rows[index]]
    is_product = _is_batched_product(signals, rows[index], family, launchers(signals)[index])
    names = events.name[rows[index]]
    other = [
        name for name in distinct(names).tolist() if _other_softmax().search(trace.strings[name])
    ]
    is_bound = is_in(family, _ON_SCORES) & ~is_in(names, other)
    is_softmax = family == KernelFamily.SOFTMAX
    # Everything else ends a stretch; the number of ends before a kernel is its stretch.
    ends = np.flatnonzero(~is_bound)
    stretch = np.searchsorted(ends, np.arange(len(index)))
    softmaxes = np.bincount(stretch[is_bound & is_softmax], minlength=len(ends) + 1)
    first, last = ends[:-1], ends[1:]
    is_layer = (softmaxes[1:-1] == 1) & is_product[first] & is_product[last]
    is_layer &= (track[first] == track[last]) & (last - first - 1 <= _MOST_BETWEEN)
    number = np.full(len(ends) + 1, -1, dtype=np.int64)
    chosen = np.flatnonzero(is_layer)
    if len(chosen) < 2:  # attention comes in layers
        return none
    number[chosen + 1] = np.arange(len(chosen))
    layer = np.where(is_bound, number[stretch], -1)
    inside = layer >= 0
    found = rows[index[inside]]
    order = np.argsort(found, kind="stable")
    return OrderedAttention(found[order], layer[inside][order])


def _is_batched_product(
    signals: Signals, rows: Int32, family: NDArray[np.uint8], operators: Int32
) -> NDArray[np.bool_]:
    """Whether kernels are matrix products that may be batched, as far as operators are known."""
    trace = signals.trace
    is_product = family == KernelFamily.MATMUL
    names = np.where(operators >= 0, trace.events.name[operators], -1)
    known = distinct(names[names >= 0]).tolist()
    single = [name for name in known if trace.strings[name] not in ("aten::bmm", "aten::baddbmm")]
    may_be: NDArray[np.bool_] = is_product & ~is_in(names, single)
    return may_be
