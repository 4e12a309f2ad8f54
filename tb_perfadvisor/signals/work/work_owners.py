"""The operator whose work a kernel does, given the operator that launched it."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from tb_perfadvisor.signals.work.operator_work import work_of_operator
from tb_perfadvisor.signals.work.required_work import Work
from tb_perfadvisor.trace import Trace
from tb_perfadvisor.trace.integer_groups import distinct, group_rows, is_in, unique_inverse
from tb_perfadvisor.trace.nesting import nearest
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
