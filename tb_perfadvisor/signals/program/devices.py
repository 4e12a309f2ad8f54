"""What the devices of a program do alike, and what they sum up that another split would not need.

A value is the same on every device if all it is computed from is: arguments that are not split, and
what was gathered or reduced over all devices. Each device then repeats the same work.
"""

from __future__ import annotations

from collections import defaultdict, deque
from enum import Enum

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.program.graph import (
    PRODUCTS,
    SAME_ELEMENTS,
    Running,
    count_of,
    origin,
    readers,
    running_programs,
    total_ns,
)
from tb_perfadvisor.signals.program.loop_work import Avoidable, AvoidableWork
from tb_perfadvisor.signals.program.useful_work import MAPS
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation
from tb_perfadvisor.trace.program import Program

_OWN = ("partition-id", "replica-id", "reduce-scatter", "all-to-all", "collective-permute")
_SHARED = ("all-reduce", "all-gather")
_PARTS = ("dynamic-slice", "slice")
_LEAST_BYTES = 1 << 20
LARGE = 1 << 16
"""Elements of arrays that devices could split."""
_MOVES = (*SAME_ELEMENTS, "concatenate", "pad")
_MOST_SENT = 0.5


@memoized
def repeated_products(signals: Signals) -> tuple[tuple[Running, list[int]], ...]:
    """The products that every device of a program computes alike, by program."""
    found = []
    for running in running_programs(signals):
        if running.program.devices < 2:
            continue
        differs = differing_values(running.program)
        rows = [row for row in running.program.rows_of(PRODUCTS) if not differs[row]]
        if rows:
            found.append((running, rows))
    return tuple(found)


@memoized
def repeated_work(signals: Signals) -> tuple[tuple[XlaOperation, float], ...]:
    """Operations that compute large arrays alike on all devices, and which share of these."""
    found = []
    for running in running_programs(signals):
        program = running.program
        if program.devices < 2:
            continue
        differs = differing_values(program)
        alike: dict[str, list[bool]] = defaultdict(list)
        for row in range(len(program)):
            if program.shape_of(row).elements >= LARGE and program.argument[row] < 0:
                alike[program.kernel_of(row)].append(not differs[row])
        exchanged = set(map(program.kernel_of, program.rows_of(_collectives())))
        found += [
            (running.operations[name], sum(same) / len(same))
            for name, same in alike.items()
            if any(same) and name in running.operations and name not in exchanged
        ]
    return tuple(found)


def differing_values(program: Program) -> NDArray[np.bool_]:
    """Which values may differ between the devices; shape (n,)."""
    differs = np.zeros(len(program), dtype=bool)
    is_argument = program.argument >= 0
    differs[is_argument & (program.parts != 1)] = True
    differs[program.rows_of([*_OWN, *(f"{name}-start" for name in _OWN)])] = True
    # Groups smaller than all devices leave differences between them.
    whole = [row for row in program.rows_of(_collectives()) if _is_over_all(program, row)]
    stays = np.zeros(len(program), dtype=bool)
    stays[whole] = True
    pending = deque(np.flatnonzero(differs).tolist())
    while pending:
        for user in program.users(pending.popleft()):
            if not differs[user] and not stays[user]:
                differs[user] = True
                pending.append(user)
    return differs


def _collectives() -> list[str]:
    return [*_SHARED, *(f"{name}-start" for name in _SHARED)]


def _is_over_all(program: Program, row: int) -> bool:
    """Whether an all-gather or all-reduce spans all devices."""
    if "gather" not in program.name_of(row):
        return program.groups.get(row, 1) == program.devices
    sources = program.operands(row, 0)
    size = sum(program.shape_of(of).elements for of in sources)
    return bool(size) and program.shape_of(row).elements == size * program.devices


@memoized
def gathers_read_in_part(signals: Signals) -> tuple[AvoidableWork, ...]:
    """The arrays that are gathered from all devices, of which each device then takes a small part.

    A device has its own part already, so that only the rest of what it takes has to be sent.
    """
    found = []
    for running in running_programs(signals):
        program = running.program
        for row in program.rows_of(("all-gather", "all-gather-start")):
            taken, moving = _taken(program, row)
            own = max((program.shape_of(of).elements for of in program.operands(row, 0)), default=0)
            whole = program.shape_of(row).elements
            sent = taken - own if taken > own else taken * (1 - own / max(whole, 1))
            if not taken or whole <= own or sent > _MOST_SENT * (whole - own):
                continue
            gathers = running.with_waits([program.kernel_of(row)])
            needed = dict.fromkeys(gathers, sent / (whole - own))
            needed |= dict.fromkeys(map(program.kernel_of, moving), taken / whole)
            now = {
                name: total_ns(signals, [running.operations[name]])
                for name in needed
                if name in running.operations
            }
            if not now:
                continue
            count = max(count_of(signals, running.operations[name]) for name in now)
            moved = float(program.shape_of(row).padded_bytes * count)
            found.append(
                AvoidableWork(
                    running=running,
                    trips=program.devices,
                    names=tuple(now),
                    time_ns=sum(now.values()),
                    needed_ns=sum(ns * needed[name] for name, ns in now.items()),
                    moved_bytes=moved,
                    border_bytes=moved * taken / whole,
                    kind=Avoidable.GATHERED,
                )
            )
    return tuple(found)


def _taken(program: Program, gather: int) -> tuple[int, list[int]]:
    """How many elements are taken of an array, 0 if it is read whole; and what moves it before."""
    taken, moving, pending = 0, list[int](), [gather]
    while pending:
        of = pending.pop()
        for user in program.users(of):
            name = program.name_of(user)
            if name in _PARTS and of in program.operands(user, 0):
                taken += program.shape_of(user).elements
            elif name in _MOVES and not program.is_result[user] and user not in moving:
                moving.append(user)
                pending.append(user)
            elif user not in moving:
                return 0, []
    return taken, moving


class Reduction(Struct, frozen=True):
    """Partial results of a product that are summed up over the devices before the next product."""

    running: Running
    product: int
    reduced: int
    """The row of the all-reduce."""
    next_product: int
    share: float
    """What would be summed up instead after the next product, relative to this."""


@memoized
def early_reductions(signals: Signals) -> tuple[Reduction, ...]:
    """Reductions of a larger array than the next product would leave.

    The product contracts a dimension that is split over the devices. If its other factor were split
    by its columns, each device would compute its columns of the result without any exchange, and
    the next product would contract these, so that its smaller result would be summed up.
    """
    found = []
    for running in running_programs(signals):
        program = running.program
        for row in program.rows_of(("all-reduce", "all-reduce-start")):
            size = program.shape_of(row).padded_bytes
            sources = [origin(program, of) for of in program.operands(row, 0)]
            is_product = [program.name_of(of) in PRODUCTS for of in sources]
            if size < _LEAST_BYTES or is_product != [True]:
                continue
            users = [u for u in readers(program, row, (*SAME_ELEMENTS, *MAPS, *_PARTS)) if u != row]
            following = [u for u in users if program.name_of(u) in PRODUCTS]
            if len(following) != 1 or len(users) != 1:
                continue
            # The result of the next product is split over the devices if its factor is. If it is
            # summed up as well, nothing more is exchanged.
            parts = program.devices if _is_split(program, following[0]) else 1
            is_summed = any(
                program.name_of(user).startswith("all-reduce")
                for user in readers(program, following[0], (*SAME_ELEMENTS, "convert"))
            )
            then = 0 if is_summed else program.shape_of(following[0]).padded_bytes * parts
            if then < size:
                found.append(Reduction(running, sources[0], row, following[0], then / size))
    return tuple(found)


def _is_split(program: Program, product: int) -> bool:
    """Whether a factor of a product is an argument that is split over the devices."""
    through = (*SAME_ELEMENTS, *_PARTS)
    factors = (origin(program, of, through) for of in program.operands(product))
    return any(program.parts[factor] > 1 for factor in factors)


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
        for row in _collectives_in(program):
            found[program.module, program.kernel_of(row)] = _carried(program, row, state)
    return found


def _collectives_in(program: Program) -> list[int]:
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
        for row in _collectives_in(program):
            if _carried(program, row, set()) is not Carried.PARAMETERS:
                name = program.name_of(row).removesuffix("-start")
                now += _SENT[name] * program.shape_of(row).padded_bytes * program.runs[row]
        then += _SENT["all-reduce"] * whole
    return then / now if now else None
