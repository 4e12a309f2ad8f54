"""What the collectives of a program carry, and how much another split would exchange."""

from __future__ import annotations

from enum import Enum

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.program.graph import (
    PRODUCTS,
    SAME_ELEMENTS,
    origin,
    readers,
    running_programs,
)
from tb_perfadvisor.signals.program.useful_work import MAPS
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace.program import Program

_SENT = {"all-gather": 1.0, "all-reduce": 2.0, "collective-permute": 1.0, "reduce-scatter": 1.0}
"""How often a ring sends the array, for large rings."""
_STORED = (*SAME_ELEMENTS, "dynamic-slice", "slice")
"""What takes the parameters of a layer out of those of all layers."""
_LARGEST_SHARE_OF_MEMORY = 0.25
"""What whole weights, gradients and optimizer state may take of a device's memory."""


class Carried(Enum):
    """What a collective carries."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    ACTIVATIONS = "activations"


@memoized
def carried(signals: Signals) -> dict[tuple[str, str], Carried]:
    """What each collective carries, by module and operation."""
    found = {}
    for running in running_programs(signals):
        program = running.program
        state = {program.shape_of(row).dims for row in _state(program)}
        for row in _collectives(program):
            found[program.module, program.kernel_of(row)] = _carried(program, row, state)
    return found


def _collectives(program: Program) -> list[int]:
    return program.rows_of([*_SENT, *(f"{name}-start" for name in _SENT)])


def _state(program: Program) -> list[int]:
    """The arguments that a step returns updated: parameters, and the state of their optimizer."""
    return [row for row in range(len(program)) if program.is_aliased[row]]


def _carried(program: Program, row: int, state: set[tuple[int, ...]]) -> Carried:
    sources = [origin(program, of, _STORED) for of in program.operands(row)]
    if sources and all(program.argument[of] >= 0 for of in sources):
        is_state = any(program.is_aliased[of] or program.parts[of] > 1 for of in sources)
        return Carried.PARAMETERS if is_state else Carried.ACTIVATIONS
    is_updated = program.shape_of(row).dims in state and not _is_multiplied(program, row)
    return Carried.GRADIENTS if is_updated else Carried.ACTIVATIONS


def _is_multiplied(program: Program, row: int) -> bool:
    """Whether a matrix product reads what is mapped from a value."""
    users = readers(program, row, (*SAME_ELEMENTS, *MAPS))
    return any(program.name_of(user) in PRODUCTS for user in users)


@memoized
def share_if_batch_is_split(signals: Signals) -> float | None:
    """What devices that keep whole weights and split the batch exchange, relative to now.

    None unless a program that trains splits its weights, but no other argument, exchanges
    activations, and whole weights would fit into the memory of a device.
    """
    facts = signals.device_facts
    memory_bytes = facts.memory_bytes if facts is not None else None
    now = then = 0.0
    for running in running_programs(signals):
        program, state = running.program, _state(running.program)
        others = [
            row for row in range(len(program)) if program.argument[row] >= 0 and row not in state
        ]
        is_split = any(program.parts[row] > 1 for row in state)
        if not is_split or not others or any(program.parts[row] != 1 for row in others):
            return None
        whole = sum(program.shape_of(row).padded_bytes * program.parts[row] for row in state)
        if memory_bytes is None or whole > _LARGEST_SHARE_OF_MEMORY * memory_bytes:
            return None
        for row in _collectives(program):
            if _carried(program, row, set()) is not Carried.PARAMETERS:
                name = program.name_of(row).removesuffix("-start")
                now += _SENT[name] * program.shape_of(row).padded_bytes * program.runs[row]
        then += _SENT["all-reduce"] * whole
    return then / now if now else None


@memoized
def share_if_activations_move(signals: Signals) -> float | None:
    """What devices exchange that keep their part of the weights, relative to gathering them.

    Each then needs the activations of all devices, and their sum. None unless each product that
    reads gathered weights is known.
    """
    now = then = 0.0
    for running in running_programs(signals):
        program = running.program
        for row in program.rows_of(("all-gather", "all-gather-start")):
            if _carried(program, row, set()) is not Carried.PARAMETERS:
                continue
            products = [u for u in readers(program, row) if program.name_of(u) in PRODUCTS]
            if not products:
                return None
            for product in products:
                others = [of for of in program.operands(product) if origin(program, of) != row]
                read = sum(program.shape_of(of).padded_bytes for of in others)
                moved = (read + program.shape_of(product).padded_bytes) * program.devices
                then += moved * program.runs[product]
            now += program.shape_of(row).padded_bytes * program.runs[row]
    return then / now if now else None
