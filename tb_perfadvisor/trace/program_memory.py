"""The memory of an XLA program, as its compiler planned it."""

from __future__ import annotations

from msgspec import Struct


class ProgramMemory(Struct, frozen=True):
    """What a program keeps in a device's memory while it runs."""

    module: str
    """Such as `jit_step(19)`."""
    arguments: tuple[tuple[str, int], ...]
    """Names and bytes. Arrays in one argument have names such as `state.params['kernel']`; the name
    is empty if it is unknown."""
    result_bytes: int
    """Of the results that do not take the place of an argument."""
    temporary_bytes: int
    """Of all other arrays. Those that are not needed at the same time share their memory."""
    constant_bytes: int

    @property
    def total_bytes(self) -> int:
        """All of it."""
        arguments = sum(size for _, size in self.arguments)
        return arguments + self.result_bytes + self.temporary_bytes + self.constant_bytes
