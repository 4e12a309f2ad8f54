"""Adds the XLA operations that GPU kernels and the CPU execute to the HLO table."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from tb_perfadvisor.ingest.xspace.decode.events import Events
from tb_perfadvisor.ingest.xspace.interpret.hlo.programs import ITEMS_OF_OPERATION, Programs
from tb_perfadvisor.trace import Assembler, KernelFamily, Precision
from tb_perfadvisor.trace.integer_groups import distinct, group_rows
from tb_perfadvisor.trace.tables import Int64


class HloColumns(Struct, frozen=True):
    """Attributes of the operation of each event; 0 if it has none. Shape (n,) each."""

    family: Int64
    precision: Int64


class HloOperations:
    """Adds each operation that events name once; devices share the rows."""

    def __init__(self, assembler: Assembler, programs: Programs) -> None:
        self._assembler = assembler
        self._programs = programs
        self._rows: dict[tuple[str, str], int] = {}
        self._family: dict[int, KernelFamily] = {}
        self._precision: dict[int, Precision] = {}

    def rows_of(self, events: Events, *, with_inside: bool = False) -> Int64:
        """The row of the HLO table that each event executes; -1 for none.

        Args:
            events: The events.
            with_inside: Whether to tell what is inside of fusions.
        """
        op_index, ops = events.texts("hlo_op")
        module_index, modules = events.texts("hlo_module")
        row_of_event = np.full(len(events), -1, dtype=np.int64)
        known = np.flatnonzero((op_index >= 0) & (module_index >= 0))
        if not known.size:
            return row_of_event
        op, module = op_index[known], module_index[known]
        program = events.numbers("program_id")[known]
        first, operation = group_rows(op, module, program)
        rows = []
        for at in first.tolist():
            label, number = modules[module[at]], int(program[at])
            if number != -1:  # as the `XLA Modules` line and the program itself name it
                label = f"{label}({number % 2**64})"
            rows.append(self._row(ops[op[at]], label, with_inside))
        row_of_event[known] = np.array(rows, dtype=np.int64)[operation]
        return row_of_event

    def select(self, rows: Int64) -> HloColumns:
        """The attributes of the operations in the given rows."""
        used = distinct(rows)
        slot = np.searchsorted(used, rows)
        family = np.array([self._family.get(row, 0) for row in used.tolist()], dtype=np.int64)
        precision = np.array([self._precision.get(row, 0) for row in used.tolist()], dtype=np.int64)
        return HloColumns(family[slot], precision[slot])

    def _row(self, op: str, module: str, with_inside: bool) -> int:
        key = (op, module)
        if key in self._rows:
            return self._rows[key]
        self._programs.budget.keep(ITEMS_OF_OPERATION)
        intern = self._assembler.intern
        known = self._programs.look_up(module, op)
        category = known.operation.category if known else ""
        inside = self._programs.look_inside(module, op) if with_inside else None
        added = self._assembler.add_hlo(
            intern(op),
            module=intern(module),
            category=intern(category) if category else -1,
            text=intern(known.text) if known else -1,
            source_line=intern(known.source) if known and known.source else -1,
            path=intern(known.path) if known and known.path else -1,
            inside_opcodes=intern(inside.opcodes) if inside else -1,
            inside_paths=intern(inside.paths) if inside else -1,
            product=intern(inside.product) if inside else -1,
            inside_elements=inside.elements if inside else -1,
            one_hot=int(inside.is_one_hot) if inside and inside.product else -1,
        )
        row = self._rows[key] = int(added[0])
        if known:
            self._family[row] = known.operation.family
            self._precision[row] = known.operation.precision
        return row
