"""Elementwise kernels that follow each other on tensors of one size: what a compiler would fuse.

Which tensor a kernel reads is not in a profile. Two elementwise kernels next to each other on a
stream, of operators whose largest inputs have the same number of elements, are taken for one
reading what the other wrote: then fused they spare writing and reading it.
"""

from __future__ import annotations

import re
from functools import cache

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.core.operator_shapes import largest_input
from tb_perfadvisor.signals.device.device_work import is_within, kernel_families, work_rows
from tb_perfadvisor.signals.device.unfused_attention import attention_in_pieces
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.work.roofline import NUMBER_FORMATS, bits_of, roofline
from tb_perfadvisor.trace import EventKind, KernelFamily
from tb_perfadvisor.trace.integer_groups import is_in, unique_inverse
from tb_perfadvisor.trace.tables import Float64, Int32, Int64


class ElementwiseChains(Struct, frozen=True):
    """Kernels of chains of two and more, chain by chain; columns of shape (n,)."""

    rows: Int32
    operators: Int32
    chain: Int64
    """Counts from 0."""
    kept_share: Float64
    """Of each kernel's traffic, what is left of its chain's when it is fused."""


@cache
def _separate() -> re.Pattern[str]:
    """What makes no chain: compiled kernels, and those on one tensor each of many parameters."""
    return re.compile(
        r"triton_|Optimizer\.|.*AccumulateGrad|aten::_foreach|aten::_fused_|.*[Rr]educer"
        r"|aten::(?:fill_|zero_|zeros|ones|full|arange)$"  # these read nothing
    )


@memoized
def elementwise_chains(signals: Signals) -> ElementwiseChains:
    """The chains of the used window, of PyTorch's operators run one by one."""
    trace, events = signals.trace, signals.trace.events
    known, rows = roofline(signals), work_rows(signals)
    slot = np.searchsorted(known.rows, rows)
    operators, traffic = known.operator[slot], known.traffic_bytes[slot]
    widths = np.array([bits_of(one) // 8 if one else 0 for one in NUMBER_FORMATS])
    item_bytes = widths[known.number_format[slot]]
    is_link = (kernel_families(signals) == KernelFamily.ELEMENTWISE) & (operators >= 0)
    is_link &= (traffic > 0) & (item_bytes > 0)
    is_link &= ~is_in(rows, attention_in_pieces(signals).rows)
    index = np.flatnonzero(is_link)
    kinds = (EventKind.OPERATOR, EventKind.ANNOTATION)
    is_link[index[is_within(signals, operators[index], _separate(), kinds)]] = False
    elements = np.zeros(len(rows), dtype=np.int64)
    elements[is_link] = largest_input(trace, operators[is_link])

    order = np.lexsort((events.start_ns[rows], events.track[rows]))
    size, good = elements[order], is_link[order]
    operator, width = operators[order], item_bytes[order]
    follows = good & (size > 0)
    follows[:1] = False
    follows[1:] &= good[:-1]
    # No chain goes on in another thread or stream, nor in another step.
    thread = np.where(good, events.track[operator], -1)
    step = np.searchsorted(signals.steps.start_ns, events.start_ns[operator], side="right")
    for column in (events.track[rows][order], size, thread, step):
        follows[1:] &= column[1:] == column[:-1]
    chain = np.cumsum(~follows)
    # An operator may split a large tensor among several kernels: they read nothing of each other.
    is_next = follows.copy()
    is_next[1:] &= operator[1:] != operator[:-1]
    between = np.minimum(width, np.concatenate((width[:1], width[:-1])))
    spared = np.bincount(chain, weights=np.where(is_next, 2.0 * size * between, 0.0))
    moved = np.bincount(chain, weights=np.where(good, traffic[order], 0.0))
    # Whatever is fused, something is read and something written.
    least = np.bincount(chain, weights=np.where(~follows, 2.0 * size * width, 0.0))
    share = np.minimum(np.maximum(moved - spared, least) / np.maximum(moved, 1), 1)
    kept = np.bincount(chain, weights=is_next)[chain] > 0
    order, chain = order[kept], chain[kept]
    _, number = unique_inverse(chain)
    return ElementwiseChains(rows[order], operators[order], number, share[chain])
