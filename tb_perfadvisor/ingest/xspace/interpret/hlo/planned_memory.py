"""The memory that XLA's compiler planned for a program: its buffer assignment.

Source: `BufferAllocationProto` in xla/service/hlo.proto.
"""

from __future__ import annotations

from typing import Any, Final

from tb_perfadvisor.ingest.xspace.interpret.hlo.instruction_text import decoded
from tb_perfadvisor.trace.program_memory import ProgramMemory

_DEVICE_MEMORY: Final = 0
"""Other colors are memory on the chip or on the host."""
_LARGEST: Final = 2**50
"""Larger than the memory of any device: the file is damaged."""


def planned_memory(module: str, message: Any) -> ProgramMemory | None:
    """The memory of a program.

    Args:
        module: Its name.
        message: Its `HloProto`.

    Returns:
        None if the message has no buffer assignment.
    """
    names: dict[int, str] | None = None
    arguments: list[tuple[str, int]] = []
    result = temporary = constant = 0
    for allocation in message.buffer_assignment.buffer_allocations:
        size = int(allocation.size)
        if allocation.is_thread_local or allocation.color != _DEVICE_MEMORY:
            continue
        if not 0 <= size < _LARGEST:
            return None
        if allocation.is_argument:
            names = _argument_names(message) if names is None else names
            arguments.append((names.get(int(allocation.argument_number), ""), size))
        elif allocation.is_constant:
            constant += size
        elif allocation.maybe_live_out:
            result += size
        else:
            temporary += size
    memory = ProgramMemory(module, tuple(arguments), result, temporary, constant)
    return memory if memory.total_bytes else None


def _argument_names(message: Any) -> dict[int, str]:
    """The framework's names of a program's arguments, by number."""
    entry = int(message.hlo_module.entry_computation_id)
    return {
        int(instruction.parameter_number): decoded(instruction.metadata.op_name)
        for computation in message.hlo_module.computations
        if int(computation.id) == entry
        for instruction in computation.instructions
        if instruction.opcode == b"parameter"
    }
