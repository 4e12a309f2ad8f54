"""XLA operations on a TPU, and their executions in the used window."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.core.hlo import Instruction, parse_instruction
from tb_perfadvisor.signals.device.device_work import work_rows
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.tables import Int32


class XlaOperation(Struct, frozen=True):
    """A distinct operation that runs in the used window."""

    op: int
    """Row of the `HloTable`."""
    name: str
    category: str
    """XProf's category: loop fusion, data formatting, …; the opcode if the profile has none."""
    path: str
    """The framework's name for it; empty if unknown."""
    instruction: Instruction

    @property
    def opcode(self) -> str:
        """Its HLO opcode."""
        return self.instruction.opcode


@memoized
def has_tiled_layouts(signals: Signals) -> bool:
    """Whether the text of any XLA operation has a tiled layout."""
    trace = signals.trace
    return any(":T(" in trace.text(int(index)) for index in distinct(trace.hlo.text))


@memoized
def xla_operations(signals: Signals) -> tuple[XlaOperation, ...]:
    """Operations whose text was recorded, costliest first; empty unless on a TPU."""
    if not has_tiled_layouts(signals):
        return ()
    text, hlo = signals.trace.text, signals.trace.hlo
    operations = []
    for op in signals.hlo.op.tolist():
        instruction = parse_instruction(text(int(hlo.text[op])))
        if instruction is not None:
            name, category, path = (
                text(int(column[op])) for column in (hlo.name, hlo.category, hlo.path)
            )
            category = category or instruction.opcode
            operations.append(XlaOperation(op, name, category, path, instruction))
    return tuple(operations)


def executions(signals: Signals, operations: Iterable[XlaOperation]) -> Int32:
    """Rows of the operations' executions in the used window, in order of start."""
    hlo = signals.trace.hlo_events
    is_wanted = np.zeros(len(signals.trace.hlo.name), dtype=bool)
    is_wanted[[operation.op for operation in operations]] = True
    rows = hlo.row[is_wanted[hlo.op]]
    used_rows: Int32 = rows[is_in(rows, work_rows(signals))]
    return used_rows
