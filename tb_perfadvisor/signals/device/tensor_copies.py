"""Copies of whole tensors within the device, and the operator that requested each."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.device.device_work import (
    kernel_families,
    launchers,
    operator_around,
    work_rows,
)
from tb_perfadvisor.signals.device.layout_conversions import layout_conversions
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import CopyDirection, EventKind, KernelFamily
from tb_perfadvisor.trace.integer_groups import is_in, unique_inverse
from tb_perfadvisor.trace.tables import Int32


class TensorCopies(Struct, frozen=True):
    """Copies of the used window in order of start; columns of shape (n,)."""

    rows: Int32
    operators: Int32
    """The outermost copying operator around each copy: `contiguous` for `copy_` in `clone` in
    `contiguous`. -1 for XLA."""


@cache
def _copying() -> re.Pattern[str]:
    """Operators that copy, always or if they cannot return a view."""
    return re.compile(
        r"aten::(?:copy_|clone|contiguous|reshape|_reshape_copy|flatten|repeat|repeat_interleave"
        r"|tile|expand_copy|view_copy|permute_copy|transpose_copy|t_copy|slice_copy|select_copy"
        r"|unfold_copy)$"
    )


@memoized
def tensor_copies(signals: Signals) -> TensorCopies:
    """Copies that leave the numbers of a tensor unchanged.

    In PyTorch, copies by `clone`, `contiguous`, `reshape`, `repeat` and similar operators. Excludes
    casts, writes into an existing buffer (`copy_` alone) and layout conversions. With XLA, kernels
    and copies that only copy.
    """
    trace, rows = signals.trace, work_rows(signals)
    is_copy = kernel_families(signals) == KernelFamily.COPY
    is_copy &= ~is_in(rows, layout_conversions(signals))
    direction = trace.by_event(trace.copies.row, trace.copies.direction, CopyDirection.UNKNOWN)
    is_over_link = trace.events.kind[rows] == EventKind.COPY
    is_over_link &= direction[rows] != CopyDirection.DEVICE_TO_DEVICE
    is_copy &= ~is_over_link
    rows, operators = rows[is_copy], launchers(signals)[is_copy]
    if signals.trace.source.framework != "pytorch":
        return TensorCopies(rows, np.full(len(rows), -1, dtype=np.int32))
    launching, inverse = unique_inverse(operators)
    operators = _outermost_copying(signals, launching)[inverse]
    is_plain_copy = _are_named(signals, operators, re.compile(r"aten::copy_$"))
    is_new_tensor = _are_named(signals, operators, _copying()) & ~is_plain_copy
    return TensorCopies(rows[is_new_tensor], operators[is_new_tensor].astype(np.int32))


def _outermost_copying(signals: Signals, operators: Int32) -> Int32:
    """The outermost operator of an unbroken chain of copying operators around each one."""
    while True:
        above = operator_around(signals, operators)
        climbs = _are_named(signals, above, _copying())
        climbs &= _are_named(signals, operators, _copying())
        if not climbs.any():
            return operators
        operators = np.where(climbs, above, operators)


def _are_named(
    signals: Signals, operators: Int32, pattern: re.Pattern[str]
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    names, inverse = unique_inverse(
        np.where(operators >= 0, signals.trace.events.name[operators], -1)
    )
    matches = [pattern.match(signals.trace.text(name)) is not None for name in names.tolist()]
    return np.array(matches, dtype=bool)[inverse]
