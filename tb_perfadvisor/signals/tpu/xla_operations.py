"""XLA's operations on a TPU: what each is, and what executes it in the used window."""

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
    """XProf's: loop fusion, data formatting, …; the opcode where the profile has none."""
    path: str
    """What the framework calls it; empty when unknown."""
    instruction: Instruction

    @property
    def opcode(self) -> str:
        """What it does, as HLO has it."""
        return self.instruction.opcode


@memoized
def has_tiled_layouts(signals: Signals) -> bool:
    """Whether any XLA operation's text has a tile."""
    trace = signals.trace
    return any(":T(" in trace.text(int(index)) for index in distinct(trace.hlo.text))


@memoized
def xla_operations(signals: Signals) -> tuple[XlaOperation, ...]:
    """Those that the profile has the text of, the costliest first; none but a TPU's."""
    if not has_tiled_layouts(signals):
        return ()
    text, hlo = signals.trace.text, signals.trace.hlo
    found = []
    for op in signals.hlo.op.tolist():
        instruction = parse_instruction(text(int(hlo.text[op])))
        if instruction is not None:
            name, category, path = (
                text(int(column[op])) for column in (hlo.name, hlo.category, hlo.path)
            )
            found.append(XlaOperation(op, name, category or instruction.opcode, path, instruction))
    return tuple(found)


def executions(signals: Signals, operations: Iterable[XlaOperation]) -> Int32:
    """What executes some operations on the device in the used window, in order of start."""
    hlo = signals.trace.hlo_events
    is_asked = np.zeros(len(signals.trace.hlo.name), dtype=bool)
    is_asked[[one.op for one in operations]] = True
    rows = hlo.row[is_asked[hlo.op]]
    found: Int32 = rows[is_in(rows, work_rows(signals))]
    return found
