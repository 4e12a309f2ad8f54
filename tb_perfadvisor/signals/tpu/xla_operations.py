"""XLA operations on a TPU, and their executions in the used window."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.device.device_work import work_rows
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace.hlo_text import Instruction, parse_instruction
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.tables import Int32

_PRODUCTS = ("dot", "convolution")


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
    inside: frozenset[str] = frozenset()
    """Opcodes inside a fusion; empty for other operations, and if the profile does not tell."""
    inside_paths: tuple[str, ...] = ()
    """The framework's names for what is inside a fusion."""
    inside_elements: int = 0
    """Elements of the largest array that is computed inside a fusion; 0 if unknown."""
    product: Instruction | None = None
    """The matrix product or convolution that it is or contains; None if it is none, or unknown."""
    is_one_hot: bool = False
    """Whether an operand of the product is seen to be a one-hot matrix."""
    is_transposed: bool = False
    """Whether it is a copy of an argument or result that the program is seen to transpose."""
    is_known_before_loop: bool = False
    """Whether it is seen to run in a loop although it depends on no other trip."""

    @property
    def opcode(self) -> str:
        """Its HLO opcode."""
        return self.instruction.opcode

    @property
    def paths(self) -> tuple[str, ...]:
        """The framework's names for it and for what is inside."""
        return (self.path, *self.inside_paths)


@memoized
def has_tiled_layouts(signals: Signals) -> bool:
    """Whether the text of any XLA operation has a tiled layout."""
    trace = signals.trace
    return any(":T(" in trace.text(int(index)) for index in distinct(trace.hlo.text))


@memoized
def xla_operations(signals: Signals) -> tuple[XlaOperation, ...]:
    """Operations whose text was recorded, costliest first; empty unless on a TPU or the CPU."""
    if not (signals.device.is_host_only or has_tiled_layouts(signals)):
        return ()
    text, hlo = signals.trace.text, signals.trace.hlo
    operations = []
    for op in signals.hlo.op.tolist():
        instruction = parse_instruction(text(int(hlo.text[op])))
        if instruction is None:
            continue
        name, category, path, opcodes, paths, product = (
            text(int(column[op]))
            for column in (
                *(hlo.name, hlo.category, hlo.path),
                *(hlo.inside_opcodes, hlo.inside_paths, hlo.product),
            )
        )
        operations.append(
            XlaOperation(
                op,
                name,
                category or instruction.opcode,
                path,
                instruction,
                inside=frozenset(opcodes.split()),
                inside_paths=tuple(paths.split("\n")) if paths else (),
                inside_elements=max(int(hlo.inside_elements[op]), 0),
                product=_product(instruction, product),
                is_one_hot=bool(hlo.one_hot[op] == 1),
                is_transposed=bool(hlo.transposed[op] == 1),
                is_known_before_loop=bool(hlo.before_loop[op] == 1),
            )
        )
    return tuple(operations)


def _product(instruction: Instruction, inside: str) -> Instruction | None:
    return instruction if instruction.opcode in _PRODUCTS else parse_instruction(inside)


def executions(signals: Signals, operations: Iterable[XlaOperation]) -> Int32:
    """Rows of the operations' executions in the used window, in order of start."""
    hlo = signals.trace.hlo_events
    is_wanted = np.zeros(len(signals.trace.hlo.name), dtype=bool)
    is_wanted[[operation.op for operation in operations]] = True
    rows = hlo.row[is_wanted[hlo.op]]
    used_rows: Int32 = rows[is_in(rows, work_rows(signals))]
    return used_rows
