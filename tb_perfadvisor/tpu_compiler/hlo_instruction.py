"""An instruction of an optimized HLO module."""

from __future__ import annotations

from msgspec import Struct

from tb_perfadvisor.trace.hlo_text import Instruction


class HloInstruction(Struct, frozen=True, dict=True):
    """An instruction of an optimized module."""

    name: str
    line: str
    """As the module has it, from its name on."""
    text: str
    """The same with the shapes of the operands, as profiles show it."""
    parsed: Instruction
    called: str
    """The computation of a fusion, or the body of a loop; empty if none."""
    trips: int | None
    """How often a loop runs; None if unknown or if it is no loop."""
    estimated_cycles: int | None
    """What the compiler notes in the instruction; None if nothing."""
    is_root: bool

    @property
    def opcode(self) -> str:
        """Its HLO opcode."""
        return self.parsed.opcode
