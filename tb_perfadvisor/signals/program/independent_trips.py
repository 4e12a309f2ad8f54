"""Loops whose trips need nothing of one another, except that their results are added up.

Microbatches whose gradients are summed, or samples that a loop maps one by one: one batch of all
trips reads the weights once, and its products have more rows.
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
)
from tb_perfadvisor.signals.program.loop_state import SLICES, LoopState, loop_states
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


class IndependentTrips(NamedTuple):
    """A loop whose trips could be one batch."""

    running: Running
    rows: tuple[int, ...]
    trips: int
    products: tuple[int, ...]
    """Those by weights that every trip reads, by row of the program."""


@memoized
def independent_trips(signals: Signals) -> tuple[IndependentTrips, ...]:
    """The loops of the used window whose trips multiply by the same weights, each for itself."""
    return tuple(
        found for loop in loop_states(signals) if (found := _independent(loop)) is not None
    )


def _independent(loop: LoopState) -> IndependentTrips | None:
    running, trips, rows, state = loop
    program = running.program
    if not all(_is_sum(program, row, state) for row in state):
        return None
    products = tuple(
        row
        for row in rows
        if program.name_of(row) in PRODUCTS
        and any(_is_shared(program, of, trips) for of in program.operands(row))
    )
    return IndependentTrips(running, rows, int(trips), products) if products else None


def _is_sum(program: Program, row: int, state: frozenset[int]) -> bool:
    """Whether a value of the state only adds something to it."""
    if program.name_of(row) in SAME_ELEMENTS:
        return True
    slots = [slot for slot in range(2) if state & set(program.operands(row, slot))]
    return program.name_of(row) == "add" and len(slots) == 1


def _is_shared(program: Program, row: int, trips: float) -> bool:
    """Whether a factor is the same array in every trip."""
    while program.name_of(row) in SAME_ELEMENTS and program.runs[row] == trips:
        operands = program.operands(row, 0)
        if len(operands) != 1:
            return False
        row = operands[0]
    return bool(program.runs[row] < trips) and len(program.shape_of(row).dims) > 1


def as_one_batch(signals: Signals) -> list[FasterOperation]:
    """The operations of such loops that read weights, with their part of what a batch takes.

    If it is unknown whether all trips fit into the memory at once, every two of them are joined.
    """
    facts, occupied = signals.device_facts, most_occupied_bytes(signals)
    room = ROOM_SHARE * ((facts and facts.memory_bytes) or 0)
    fits = occupied is not None and occupied <= room
    faster: dict[int, FasterOperation] = {}
    for loop in independent_trips(signals):
        joined = loop.trips if fits else _FEW
        for operation in loop.running.of(loop.products):
            expected, best = (
                _then_ns(signals, loop, operation, joined, at_best=at_best)
                for at_best in (False, True)
            )
            if expected is None or best is None:
                continue
            now = mean_ns(signals, operation)
            expected, best = min(expected, now), min(best, expected, now)
            faster[operation.op] = FasterOperation(operation, expected, best, (expected + now) / 2)
    return list(faster.values())


def _then_ns(
    signals: Signals, loop: IndependentTrips, operation: XlaOperation, joined: int, *, at_best: bool
) -> float | None:
    """What an operation takes of a batch: by its products, other arithmetic and bytes."""
    program, bytes_per_s = loop.running.program, memory_bandwidth(signals, at_peak=at_best)
    rows = [row for row in loop.rows if program.kernel_of(row) == operation.name]
    others = [row for row in rows if program.name_of(row) not in (*PRODUCTS, *SLICES)]
    flop = 0.0
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
    weights = {
        of
        for row in rows
        if row in loop.products
        for of in program.operands(row)
        if _is_shared(program, of, loop.trips)
    }
    shared = stored_bytes(*map(program.shape_of, weights))
    moved = max(moved_bytes(operation.instruction) - shared * (1 - 1 / joined), 0.0)
    return max(moved / bytes_per_s * NS_PER_S, product_ns, other_ns)
