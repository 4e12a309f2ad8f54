"""What the largest XLA program keeps in a device's memory, by what it is for."""

from __future__ import annotations

import re

from msgspec import Struct

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals

_OPTIMIZER_STATE = re.compile(
    r"(?:^|\W)(?:opt_state|opt_states|optimizer_state|optimizer|mu|nu|momentum|velocity)(?:\W|$)"
)
"""Names in Flax's TrainState, T5X, MaxText and the states of optax."""
_PARAMETERS = re.compile(r"(?:^|\W)(?:params?|parameters)(?:\W|$)")
_OTHER = "other arguments"


class MemoryPart(Struct, frozen=True):
    """Memory of one kind."""

    label: str
    bytes: int


class ProgramMemoryUse(Struct, frozen=True):
    """The memory of a program."""

    module: str
    parts: tuple[MemoryPart, ...]
    """They add up to all of it. None is empty."""
    total_bytes: int


@memoized
def program_memory(signals: Signals) -> ProgramMemoryUse | None:
    """The memory of the program that takes most; None if the profile shows none."""
    largest = max(signals.trace.program_memory, key=lambda memory: memory.total_bytes, default=None)
    if largest is None:
        return None
    parts: dict[str, int] = {}
    for name, size in largest.arguments:
        label = _label(name)
        parts[label] = parts.get(label, 0) + size
    if parts.keys() == {_OTHER}:
        parts = {"arguments": parts[_OTHER]}
    parts |= {
        "results": largest.result_bytes,
        "temporaries": largest.temporary_bytes,
        "constants": largest.constant_bytes,
    }
    found = tuple(MemoryPart(label, size) for label, size in parts.items() if size)
    return ProgramMemoryUse(largest.module, found, largest.total_bytes)


def _label(argument: str) -> str:
    """What an argument is, by its name. States of optimizers have the names of parameters, too."""
    if _OPTIMIZER_STATE.search(argument):
        return "optimizer state"
    return "parameters" if _PARAMETERS.search(argument) else _OTHER
