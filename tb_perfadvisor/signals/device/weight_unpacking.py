"""Kernels that unpack quantized weights for the matrix products that read them.

Weights stored in 4 or 8 bits are small, but a kernel that writes them out in 16 bits moves more
bytes than 16-bit weights would: it reads the packed ones and writes wide ones, which the product
reads again. A product that unpacks them itself reads the packed ones only.
"""

from __future__ import annotations

import re
from functools import cache

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.device.casts import casts
from tb_perfadvisor.signals.device.device_work import kernel_families, work_rows
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind, KernelFamily
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.tables import Int32

_PRODUCTS = (KernelFamily.MATMUL, KernelFamily.CONVOLUTION)


class WeightUnpacking(Struct, frozen=True):
    """Device events of the used window."""

    rows: Int32
    """Kernels that only unpack, shape (n,)."""
    casts: Int32
    """Casts of what they write, before the product reads it; shape (m,)."""


@cache
def _names() -> re.Pattern[str]:
    # bitsandbytes: kDequantizeBlockwise; torchao, GPTQ, AWQ, vLLM: dequantize_…, dequant_…
    return re.compile(r"(?i)de_?quant")


@memoized
def weight_unpacking(signals: Signals) -> WeightUnpacking:
    """Kernels that unpack what a matrix product reads next on their stream.

    What is unpacked after a message, or for other work, does not count.
    """
    trace, rows = signals.trace, work_rows(signals)
    # Products may clear a workspace first.
    is_kernel = trace.events.kind[rows] == EventKind.KERNEL
    rows, families = rows[is_kernel], kernel_families(signals)[is_kernel]
    names = trace.events.name[rows]
    known = [n for n in distinct(names).tolist() if _names().search(trace.strings[n])]
    if not known:
        return WeightUnpacking(rows[:0], rows[:0])
    order = np.lexsort((trace.events.start_ns[rows], trace.events.track[rows]))
    rows, families, track = rows[order], families[order], trace.events.track[rows[order]]
    is_product = is_in(families, _PRODUCTS)
    is_unpacking = is_in(names[order], known) & ~is_product
    is_cast = is_in(rows, casts(signals).rows) & ~is_unpacking
    converts = is_unpacking | is_cast
    place = np.arange(len(rows))
    follower = _latest(place[::-1], ~converts[::-1])[::-1]
    is_read = (follower >= 0) & is_product[follower] & (track[follower] == track)
    begins = ~converts | (np.diff(track, prepend=-1) != 0)
    is_after = _latest(place, is_unpacking) > _latest(place, begins & ~is_unpacking)
    return WeightUnpacking(rows[is_unpacking & is_read], rows[is_cast & is_read & is_after])


def _latest(place: NDArray[np.int64], is_chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
    """For each place in turn, the latest chosen one; -1 before the first."""
    index = np.maximum.accumulate(np.where(is_chosen, np.arange(len(place)), -1))
    return np.where(index >= 0, place[index], -1)
