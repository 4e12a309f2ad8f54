"""Consecutive elementwise kernels on tensors of the same size, which a compiler would fuse.

A profile does not say which tensors a kernel reads. If two elementwise kernels follow each other on
a stream and the largest inputs of their operators have the same number of elements, assume that the
second reads what the first wrote. Fusing them saves this write and read.
"""

from __future__ import annotations

import re
from functools import cache

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.core.operator_shapes import largest_input
from tb_perfadvisor.signals.device.device_work import is_within, kernel_families, work_rows
from tb_perfadvisor.signals.device.unfused_attention import unfused_attention
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.work.roofline import NUMBER_FORMATS, bits_of, roofline
from tb_perfadvisor.trace import EventKind, KernelFamily
from tb_perfadvisor.trace.integer_groups import is_in, unique_inverse
from tb_perfadvisor.trace.tables import Float64, Int32, Int64


class ElementwiseChains(Struct, frozen=True):
    """Kernels in chains of at least two, chain by chain; columns of shape (n,)."""

    rows: Int32
    operators: Int32
    chain: Int64
    """Number of the chain, from 0."""
    remaining_share: Float64
    """Share of the chain's traffic that remains after fusion."""


@cache
def _excluded() -> re.Pattern[str]:
    """Operators that never form chains: compiled kernels, and updates of one parameter each."""
    return re.compile(
        r"triton_|Optimizer\.|.*AccumulateGrad|aten::_foreach|aten::_fused_|.*[Rr]educer"
        r"|aten::(?:fill_|zero_|zeros|ones|full|arange)$"  # these read nothing
    )


@memoized
def elementwise_chains(signals: Signals) -> ElementwiseChains:
    """The chains of eager PyTorch operators in the used window."""
    trace, events = signals.trace, signals.trace.events
    rooflines, rows = roofline(signals), work_rows(signals)
    slot = np.searchsorted(rooflines.rows, rows)
    operators, traffic = rooflines.operator[slot], rooflines.traffic_bytes[slot]
    widths = np.array([bits_of(name) // 8 if name else 0 for name in NUMBER_FORMATS])
    item_bytes = widths[rooflines.number_format[slot]]
    is_link = (kernel_families(signals) == KernelFamily.ELEMENTWISE) & (operators >= 0)
    is_link &= (traffic > 0) & (item_bytes > 0)
    is_link &= ~is_in(rows, unfused_attention(signals).rows)
    index = np.flatnonzero(is_link)
    kinds = (EventKind.OPERATOR, EventKind.ANNOTATION)
    is_link[index[is_within(signals, operators[index], _excluded(), kinds)]] = False
    elements = np.zeros(len(rows), dtype=np.int64)
    elements[is_link] = largest_input(trace, operators[is_link])

    order = np.lexsort((events.start_ns[rows], events.track[rows]))
    size, is_link = elements[order], is_link[order]
    operator, width = operators[order], item_bytes[order]
    follows = is_link & (size > 0)
    follows[:1] = False
    follows[1:] &= is_link[:-1]
    # A chain ends where the thread, the stream or the step changes.
    thread = np.where(is_link, events.track[operator], -1)
    step = signals.steps.owner[operator]
    for column in (events.track[rows][order], size, thread, step):
        follows[1:] &= column[1:] == column[:-1]
    chain = np.cumsum(~follows)
    # An operator may split a large tensor among several kernels, which share no data.
    is_next = follows.copy()
    is_next[1:] &= operator[1:] != operator[:-1]
    between = np.minimum(width, np.concatenate((width[:1], width[:-1])))
    saved = np.bincount(chain, weights=np.where(is_next, 2.0 * size * between, 0.0))
    moved = np.bincount(chain, weights=np.where(is_link, traffic[order], 0.0))
    # A fused kernel still reads an input and writes an output.
    minimum = np.bincount(chain, weights=np.where(~follows, 2.0 * size * width, 0.0))
    share = np.minimum(np.maximum(moved - saved, minimum) / np.maximum(moved, 1), 1)
    has_next = np.bincount(chain, weights=is_next)[chain] > 0
    order, chain = order[has_next], chain[has_next]
    _, number = unique_inverse(chain)
    return ElementwiseChains(rows[order], operators[order], number, share[chain])
