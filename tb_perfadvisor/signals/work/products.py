"""Operators that compute products: matrix products, convolutions and attention."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_perfadvisor.signals.core.placement import has_ancestor, innermost_marked
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.work.operator_inputs import Work
from tb_perfadvisor.signals.work.operator_work import is_product, work_of_operator
from tb_perfadvisor.trace import Trace
from tb_perfadvisor.trace.integer_groups import (
    distinct,
    group_rows,
    is_in,
    row_mask,
    unique_inverse,
)
from tb_perfadvisor.trace.nesting import nearest, with_enclosing
from tb_perfadvisor.trace.tables import Int32, Int64


class WorkOwners:
    """Finds the operators that own the work of launchers; evaluates equal executions once."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        table = trace.operators
        self._slot = trace.by_event(table.row, np.arange(len(table.row), dtype=np.int32), -1)
        self._known: dict[int, Work | None] = {}
        self._owner: dict[int, int] = {}
        self._forward: dict[int, Work] | None = None

    def work(self, row: int) -> Work:
        """The work of a row that `owners` returned.

        Raises:
            KeyError: For other rows.
        """
        work = self._known[row]
        if work is None:
            raise KeyError(row)
        return work

    def owners(self, rows: Int32) -> Int64:
        """The operator whose work each launching operator does; -1 for none. Shape (n,).

        Usually this is the launching operator itself. Old versions of PyTorch run convolutions as
        parts with names of their own; for these, try the operators around them too. Other parts do
        not do the work of the whole operator.
        """
        self._evaluate(rows)
        trace, known = self._trace, self._known
        names, inverse = unique_inverse(trace.events.name[rows])
        is_convolution = np.array(["conv" in trace.strings[name] for name in names.tolist()], bool)
        is_known = np.array([known[row] is not None for row in rows.tolist()], dtype=bool)
        owners = np.where(is_known, rows.astype(np.int64), -1)
        for index in np.flatnonzero(~is_known & is_convolution[inverse]).tolist():
            owners[index] = self._convolution_around(int(rows[index]))
        return owners

    def _convolution_around(self, row: int) -> int:
        """The innermost convolution with known work at or around an operator; -1 for none."""
        passed = []
        while row >= 0 and row not in self._owner and "conv" in self._trace.name(row):
            passed.append(row)
            if row not in self._known:
                self._evaluate(np.array([row], dtype=np.int32))
            if self._known[row] is None:
                self._known[row] = self._work_of_forward(row)
            if self._known[row] is not None:
                self._owner[row] = row
                break
            row = int(self._trace.events.parent[row])
        # Remembered, so that each event is passed once, however many are nested.
        owner = self._owner.get(row, -1)
        self._owner.update(dict.fromkeys(passed, owner))
        return owner

    def _evaluate(self, rows: Int32) -> None:
        trace, table, slot = self._trace, self._trace.operators, self._slot[rows]
        for row in rows[slot < 0].tolist():
            self._known[row] = None
        rows, slot = rows[slot >= 0], slot[slot >= 0]
        if not rows.size:
            return
        columns = (trace.events.name[rows], table.shapes[slot], table.dtypes[slot])
        first, group = group_rows(*columns, table.values[slot])
        works = [
            work_of_operator(
                trace.name(int(rows[index])),
                trace.text(int(table.shapes[slot[index]])),
                trace.text(int(table.dtypes[slot[index]])),
                trace.text(int(table.values[slot[index]])),
            )
            for index in first.tolist()
        ]
        self._known.update(zip(rows.tolist(), map(works.__getitem__, group.tolist()), strict=True))

    def _work_of_forward(self, row: int) -> Work | None:
        """The work of a forward convolution, derived from its backward convolution.

        The first PyTorch profilers did not record strides, but the shape of the gradient implies
        them.
        """
        if self._forward is None:
            self._forward = self._forward_works()
        return self._forward.get(row)

    def _forward_works(self) -> dict[int, Work]:
        trace, events, rows = self._trace, self._trace.events, self._trace.operators.row
        names = events.name[rows]
        backward = [
            name
            for name in distinct(names).tolist()
            if "convolution_backward" in trace.strings[name]
        ]
        rows = rows[is_in(names, backward)]
        self._evaluate(rows)
        works = {}
        linked = nearest(events.parent, events.forward >= 0)
        for row in rows.tolist():
            work = self._known[row]
            node = int(linked[row])
            if work is None or work.matmul is None or not work.matmul.flop or node < 0:
                continue
            passes = work.flop / work.matmul.flop
            if passes:
                works[int(events.forward[node])] = replace(
                    work, flop=work.matmul.flop, traffic_bytes=work.traffic_bytes / passes
                )
        return works


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
