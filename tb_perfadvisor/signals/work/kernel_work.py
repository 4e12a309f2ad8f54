"""The work of the operators of a trace, and which operator's work a kernel's launcher does."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from tb_perfadvisor.signals.work.operator_work import work_of_operator
from tb_perfadvisor.signals.work.required_work import Work
from tb_perfadvisor.trace import Trace
from tb_perfadvisor.trace.integer_groups import distinct, group_rows, is_in, unique_inverse
from tb_perfadvisor.trace.tables import Int32, Int64


class OperatorWorks:
    """The work of operators by row, each kind of execution worked out once."""

    def __init__(self, trace: Trace) -> None:
        """Index the operators that have shapes."""
        self._trace = trace
        table = trace.operators
        self._slot = trace.by_event(table.row, np.arange(len(table.row), dtype=np.int32), -1)
        self._known: dict[int, Work | None] = {}
        self._told: dict[int, Work] | None = None

    def work(self, row: int) -> Work:
        """The work of what `owners` found.

        Raises:
            KeyError: For other rows.
        """
        found = self._known[row]
        if found is None:
            raise KeyError(row)
        return found

    def owners(self, rows: Int32) -> Int64:
        """The operator whose work each launching operator does; -1 for none. Shape (n,).

        Mostly that is itself. Old versions call the parts of a convolution by names of their
        own, so that for these the operators around it are asked as well; otherwise the work of
        a part is not that of the whole.
        """
        self._work_out(rows)
        trace, known = self._trace, self._known
        names, name = unique_inverse(trace.events.name[rows])
        is_part = np.array(["conv" in trace.strings[one] for one in names.tolist()], dtype=bool)[
            name
        ]
        is_known = np.array([known[row] is not None for row in rows.tolist()], dtype=bool)
        found = np.where(is_known, rows.astype(np.int64), -1)
        for one in np.flatnonzero(~is_known & is_part).tolist():
            found[one] = self._owner(int(rows[one]))
        return found

    def _owner(self, row: int) -> int:
        while row >= 0 and "conv" in self._trace.name(row):
            if row not in self._known:
                self._work_out(np.array([row], dtype=np.int32))
            if self._known[row] is None:
                self._known[row] = self._as_told(row)
            if self._known[row] is not None:
                return row
            row = int(self._trace.events.parent[row])
        return -1

    def _work_out(self, rows: Int32) -> None:
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
                trace.name(int(rows[one])),
                trace.text(int(table.shapes[slot[one]])),
                trace.text(int(table.dtypes[slot[one]])),
                trace.text(int(table.values[slot[one]])),
            )
            for one in first.tolist()
        ]
        self._known.update(zip(rows.tolist(), map(works.__getitem__, group.tolist()), strict=True))

    def _as_told(self, row: int) -> Work | None:
        """The work of a forward convolution as its backward one tells.

        The first versions did not record strides, which the shape of the gradient makes up for.
        """
        if self._told is None:
            self._told = self._by_forward()
        return self._told.get(row)

    def _by_forward(self) -> dict[int, Work]:
        trace, events, rows = self._trace, self._trace.events, self._trace.operators.row
        names = events.name[rows]
        backward = [
            name
            for name in distinct(names).tolist()
            if "convolution_backward" in trace.strings[name]
        ]
        rows = rows[is_in(names, backward)]
        self._work_out(rows)
        told = {}
        for row in rows.tolist():
            work, node = self._known[row], row
            while node >= 0 and events.forward[node] < 0:
                node = int(events.parent[node])
            if work is None or work.matmul is None or not work.matmul.flop or node < 0:
                continue
            passes = work.flop / work.matmul.flop
            if passes:
                told[int(events.forward[node])] = replace(
                    work, flop=work.matmul.flop, traffic_bytes=work.traffic_bytes / passes
                )
        return told
