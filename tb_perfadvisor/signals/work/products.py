"""Operators that compute products: matrix products, convolutions and attention."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.core.placement import has_ancestor, innermost_marked
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.work.operator_work import is_product, work_of_operator
from tb_perfadvisor.signals.work.work_owners import WorkOwners
from tb_perfadvisor.trace.integer_groups import distinct, group_rows, is_in, row_mask
from tb_perfadvisor.trace.nesting import with_enclosing
from tb_perfadvisor.trace.tables import Int32


@memoized
def matrix_flop(signals: Signals) -> float | None:
    """FLOP of products per used step, from their shapes, for comparing ranks regardless of time.

    It is the mean over the used steps, without operators of unknown shape; None if none are known.
    """
    _, works = outermost_products(signals)
    flop = sum(work.flop for work in (*works, *replayed_products(signals).work))
    return flop / signals.steps.count if flop else None


@memoized
def outermost_products(signals: Signals) -> tuple[Int32, NDArray[np.object_]]:
    """Operators of the used window with a known product, and the `Work` of each; shape (n,).

    An operator inside another one with a known product is part of it, and left out.
    """
    return _outermost(signals, signals.steps.owner[signals.trace.operators.row] >= 0)


class ReplayedProducts(Struct, frozen=True):
    """Products of replayed GPU graphs, one row for each replay; columns of shape (n,)."""

    launch: Int32
    """The launch of the graph."""
    operator: Int32
    """The operator that put the product into the graph."""
    work: NDArray[np.object_]
    """Its `Work`."""


@memoized
def replayed_products(signals: Signals) -> ReplayedProducts:
    """The products that graphs replay in the used window, as far as their capture was recorded."""
    trace = signals.trace
    events, table = trace.events, trace.captured
    is_used = signals.steps.owner[table.row] >= 0
    operators = with_enclosing(events.parent, distinct(table.operator[is_used]))
    rows, works = _outermost(signals, operators[trace.operators.row])
    place = np.full(len(events) + 1, -1, dtype=np.int64)
    place[rows] = np.arange(len(rows))
    owner = innermost_marked(events.parent, table.operator[is_used], place[:-1] >= 0)
    launch = events.launched_by[table.row[is_used]]
    first, _ = group_rows(launch[owner >= 0], owner[owner >= 0])
    owner, launch = owner[owner >= 0][first], launch[owner >= 0][first]
    return ReplayedProducts(launch, owner, works[place[owner]])


def _outermost(signals: Signals, is_chosen: NDArray[np.bool_]) -> tuple[Int32, NDArray[np.object_]]:
    """The outermost of some operators with a known product, and the `Work` of each; shape (n,).

    `is_chosen` tells which rows of the table of operators to look at.
    """
    trace = signals.trace
    table, events = trace.operators, trace.events
    names = events.name[table.row]
    products = [name for name in distinct(names).tolist() if is_product(trace.strings[name])]
    slot = np.flatnonzero(is_in(names, products) & (table.shapes >= 0) & is_chosen)
    rows = table.row[slot]
    if not slot.size:
        return rows, np.empty(0, dtype=object)
    first, group = group_rows(
        *(column[slot] for column in (names, table.shapes, table.dtypes, table.values))
    )
    works = np.empty(len(first), dtype=object)
    works[:] = [
        work_of_operator(
            trace.strings[names[index]],
            *(trace.text(int(c[index])) for c in (table.shapes, table.dtypes, table.values)),
        )
        for index in slot[first].tolist()
    ]
    works = works[group]
    unknown = np.flatnonzero([work is None for work in works])
    if unknown.size:
        # The first PyTorch profilers did not record strides, but gradients reveal them.
        work_owners = WorkOwners(trace)
        for index, owner in zip(unknown, work_owners.owners(rows[unknown]).tolist(), strict=True):
            works[index] = work_owners.work(owner) if owner == rows[index] else None
    is_known = np.array([work is not None for work in works], dtype=bool)
    rows, works = rows[is_known], works[is_known]
    is_outermost = ~has_ancestor(events.parent, rows, row_mask(len(events), rows))
    return rows[is_outermost], works[is_outermost]
