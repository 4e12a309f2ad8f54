"""Matrices that are copied for each row, to multiply each row by a matrix of its own.

A program that picks a matrix for each row (an expert for each token, an adapter for each request)
may index its table of matrices with the choices. That copies a matrix for each row, although there
are only a few: `weights[expert]` of shape (8, k, n) with 1,024 choices makes 1,024 matrices. Shapes
prove it: what is multiplied holds matrices of the same size, and more of them than the table.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.core.operators import Shape, parse_shapes, shapes_of
from tb_perfadvisor.signals.device.device_work import launchers, work_rows
from tb_perfadvisor.signals.host.call_tree import host_operators
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.tables import Int32

_GATHERS = ("aten::index", "aten::index_select", "aten::gather", "aten::embedding")
_PRODUCTS = ("aten::bmm", "aten::baddbmm", "aten::baddbmm_")


class GatheredMatrices(Struct, frozen=True):
    """Kernels of the used window; operators on the CPU."""

    rows: Int32
    """Those that copy matrices; shape (n,)."""
    products: Int32
    """Those that multiply the copies; shape (m,)."""
    tables: tuple[tuple[int, int], ...]
    """Matrices in each table, and how many are made of them; the tables with most first."""


@memoized
def gathered_matrices(signals: Signals) -> GatheredMatrices:
    """Gathers of matrices that are multiplied afterwards."""
    gathers, products = (dict(_by_shapes(signals, names)) for names in (_GATHERS, _PRODUCTS))
    rows: list[Int32] = []
    multiplied: dict[tuple[Shape, ...], Int32] = {}
    tables: set[tuple[int, int]] = set()
    for inputs, copies in gathers.items():
        table = inputs[0] if inputs else ()
        if len(table) != 3:
            continue
        chosen = {
            shapes: count
            for shapes in products
            for count in [_made_of(table, shapes)]
            if count is not None
        }
        if chosen:
            rows.append(copies)
            tables.add((table[0], max(chosen.values())))
            multiplied.update({shapes: products[shapes] for shapes in chosen})
    return GatheredMatrices(
        np.sort(np.concatenate([np.empty(0, np.int32), *rows])).astype(np.int32),
        np.sort(np.concatenate([np.empty(0, np.int32), *multiplied.values()])).astype(np.int32),
        tuple(sorted(tables, key=lambda pair: -pair[1])),
    )


def _made_of(table: Shape, product: tuple[Shape, ...]) -> int | None:
    """How many matrices of a table a product multiplies; None if its matrices are others."""
    for operand in product:
        same = operand[1:] in (table[1:], table[:0:-1])
        if len(operand) == 3 and same and operand[0] > table[0]:
            return operand[0]
    return None


def _by_shapes(
    signals: Signals, names: tuple[str, ...]
) -> Iterator[tuple[tuple[Shape, ...], Int32]]:
    """Kernels that some operators launch, by the shapes of these operators' inputs.

    On the CPU, the operators themselves.
    """
    trace, rows, operators = signals.trace, work_rows(signals), launchers(signals)
    is_chosen = (operators >= 0) & (trace.events.kind[rows] == EventKind.KERNEL)
    if signals.device.is_host_only:
        rows = operators = host_operators(signals).rows
        is_chosen = np.ones(len(rows), dtype=np.bool_)
    known = [trace.strings.index(name) for name in names if name in trace.strings]
    is_chosen &= is_in(np.where(operators >= 0, trace.events.name[operators], -1), known)
    rows, shapes = rows[is_chosen], shapes_of(trace, operators[is_chosen])
    for text in distinct(shapes[shapes >= 0]).tolist():
        yield parse_shapes(trace.strings[text]), rows[shapes == text]
