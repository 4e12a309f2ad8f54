"""Loops whose trips need nothing of one another, except sums of their results and what they store.

Microbatches whose gradients are summed, samples that a loop maps one by one, or given words whose
keys and values each trip stores for those behind it: one batch of all trips reads the weights once,
and its products have more rows.
"""

from __future__ import annotations

from typing import NamedTuple

from tb_perfadvisor.signals.device.memory_categories import ROOM_SHARE
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.program.achievable_rate import arithmetic_ns
from tb_perfadvisor.signals.program.graph import (
    PRODUCTS,
    SAME_ELEMENTS,
    FasterOperation,
    Running,
    mean_ns,
    readers,
)
from tb_perfadvisor.signals.program.loop_state import SLICES, STORES, LoopState, loop_states
from tb_perfadvisor.signals.program.written_bytes import most_occupied_bytes
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.memory_time import memory_bandwidth, moved_bytes, stored_bytes
from tb_perfadvisor.signals.tpu.product_time import flop_time_ns, product_flop
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation
from tb_perfadvisor.trace.hlo_text import parse_instruction
from tb_perfadvisor.trace.program import Program
from tb_perfadvisor.units import NS_PER_S

_FEW = 2
"""Trips that are joined if it is unknown whether all fit into the memory."""
_MOSTLY = 0.5
"""Of the bytes that an operation without a product moves: it waits for arrays of all trips."""


class IndependentLoop(NamedTuple):
    """A loop whose trips could be one batch."""

    running: Running
    rows: tuple[int, ...]
    trips: int
    readers: tuple[int, ...]
    """What reads an array that is the same in every trip, such as weights, or one in which trips
    store, by row of the program."""
    copies: tuple[int, ...]
    """Copies, before and behind the loop, of arrays in which trips store."""
    reads_stores: bool
    """Whether trips read what others store."""


@memoized
def independent_trips(signals: Signals) -> tuple[IndependentLoop, ...]:
    """The loops of the used window whose trips multiply by the same weights, each for itself."""
    return tuple(
        found for loop in loop_states(signals) if (found := _independent(loop)) is not None
    )


def _independent(loop: LoopState) -> IndependentLoop | None:
    running, trips, rows, state, reads_stores = loop
    program = running.program
    if not all(_is_sum(program, row, state) for row in state):
        return None
    readers = tuple(
        row
        for row in rows
        if program.name_of(row) not in (*SAME_ELEMENTS, *SLICES, *STORES)
        and any(_is_shared(program, of, trips) for of in program.operands(row))
    )
    if not any(program.name_of(row) in PRODUCTS for row in readers):
        return None
    stores = [row for row in rows if program.name_of(row) in STORES]
    beside = {of for row in stores for of in (*program.operands(row, 0), *program.users(row))}
    copies = tuple(
        sorted(of for of in beside if program.name_of(of) == "copy" and program.runs[of] < trips)
    )
    return IndependentLoop(running, rows, int(trips), readers, copies, reads_stores)


def _is_sum(program: Program, row: int, state: frozenset[int]) -> bool:
    """Whether a value of the state only adds something to it."""
    if program.name_of(row) in SAME_ELEMENTS:
        return True
    slots = [slot for slot in range(2) if state & set(program.operands(row, slot))]
    return program.name_of(row) == "add" and len(slots) == 1


def _is_shared(program: Program, row: int, trips: float) -> bool:
    """Whether a factor is the same array in every trip, but for what the trips store in it."""
    while program.name_of(row) in SAME_ELEMENTS and program.runs[row] == trips:
        operands = program.operands(row, 0)
        if len(operands) != 1:
            return False
        row = operands[0]
    is_same = program.runs[row] < trips or program.name_of(row) in STORES
    return bool(is_same) and len(program.shape_of(row).dims) > 1


def _is_single_row_product(program: Program, row: int, loop: IndependentLoop) -> bool:
    """Whether a value is the first half of a product that XLA computes without the matrix unit.

    It multiplies the elements and adds them up, because a trip has a single row.
    """
    return (
        row in loop.readers
        and program.name_of(row) == "multiply"
        and all(program.name_of(user) == "reduce" for user in readers(program, row))
    )


def _sizes(program: Program, row: int) -> set[int]:
    """How many elements a value and what it is computed from have."""
    return {program.shape_of(of).elements for of in (row, *program.operands(row))}


def as_one_batch(signals: Signals) -> list[FasterOperation]:
    """The operations that read the same arrays in each trip, with their part of what a batch takes.

    If it is unknown whether all trips fit into the memory at once, every two of them are joined.
    """
    facts, occupied = signals.device_facts, most_occupied_bytes(signals)
    room = ROOM_SHARE * ((facts and facts.memory_bytes) or 0)
    fits = occupied is not None and occupied <= room
    faster: dict[int, FasterOperation] = {}
    for loop in independent_trips(signals):
        joined = loop.trips if fits else _FEW
        for operation in loop.running.of(loop.readers):
            expected, best = (
                _then_ns(signals, loop, operation, joined, at_best=at_best)
                for at_best in (False, True)
            )
            if expected is None or best is None:
                continue
            now = mean_ns(signals, operation)
            expected, best = min(expected, now), min(best, expected, now)
            faster[operation.op] = FasterOperation(operation, expected, best, (expected + now) / 2)
        for operation in loop.running.of(loop.copies) if loop.reads_stores else ():
            # The loop needs an order of dimensions that suits single rows.
            now = mean_ns(signals, operation)
            faster.setdefault(operation.op, FasterOperation(operation, now / 2, 0.0, now))
    return list(faster.values())


def _then_ns(
    signals: Signals, loop: IndependentLoop, operation: XlaOperation, joined: int, *, at_best: bool
) -> float | None:
    """What an operation takes of a batch: by its products, other arithmetic and bytes."""
    program, bytes_per_s = loop.running.program, memory_bandwidth(signals, at_peak=at_best)
    rows = [row for row in loop.rows if program.kernel_of(row) == operation.name]
    singles = [row for row in rows if _is_single_row_product(program, row, loop)]
    sizes = [program.shape_of(row).elements for row in singles]
    others = [
        row
        for row in rows
        if program.name_of(row) not in (*PRODUCTS, *SLICES)
        and not any(size in _sizes(program, row) for size in sizes)
    ]
    flop = 2.0 * sum(sizes)
    for row in rows:
        if program.name_of(row) in PRODUCTS:
            product = parse_instruction(program.texts.get(row, ""))
            terms = product_flop(product) if product is not None else None
            if terms is None:
                return None
            flop += terms
    product_ns = flop_time_ns(signals, flop, at_peak=at_best)
    other_ns = arithmetic_ns(signals, program, others)
    if bytes_per_s is None or product_ns is None or other_ns is None:
        return None
    arrays = {
        of
        for row in rows
        if row in loop.readers
        for of in program.operands(row)
        if _is_shared(program, of, loop.trips)
    }
    shared = stored_bytes(*map(program.shape_of, arrays))
    now_bytes = moved_bytes(operation.instruction)
    if not flop and shared < _MOSTLY * now_bytes:
        return None
    moved = max(now_bytes - shared * (1 - 1 / joined), 0.0)
    return max(moved / bytes_per_s * NS_PER_S, product_ns, other_ns)
