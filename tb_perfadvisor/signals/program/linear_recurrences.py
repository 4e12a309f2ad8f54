"""Loops whose state is only multiplied and added to, from one trip to the next.

Then the trips need not wait for one another. A state `a * h + b` after two trips is
`(a2 * a1) * h + (a2 * b1 + b2)`: pairs of trips combine first, and pairs of pairs. If what is added
is the product of a column and a row, some trips together are matrix products: a chunk of linear
attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.program.achievable_rate import arithmetic_ns, element_ns
from tb_perfadvisor.signals.program.graph import (
    PRODUCTS,
    SAME_ELEMENTS,
    FasterOperation,
    Running,
    count_of,
    in_proportion,
    origin,
    total_ns,
)
from tb_perfadvisor.signals.program.loop_state import SLICES, STORES, LoopState, loop_states
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.memory_time import memory_bandwidth
from tb_perfadvisor.signals.tpu.product_time import flop_time_ns
from tb_perfadvisor.trace.hlo_text import Shape
from tb_perfadvisor.trace.program import Program
from tb_perfadvisor.units import NS_PER_S

LEAST_TRIPS = 64
"""Two trips of chunks, or six levels of pairs, cost as much as some dozen trips."""
CHUNK = 128
"""Trips that one set of matrix products computes: a side of the matrix unit."""
_CHUNK_NS = 10_000.0
"""About twenty small operations of half a microsecond each, as XLA schedules a chunk."""
_PASSES = 6.0, 2.0
"""How often combining pairs moves each array, and computes each element, as usual and at best."""
_SUMS = ("add", "subtract")
_SCORES_OPERATIONS = 4
"""On each pair of trips of a chunk: a mask, a decay, a product and a conversion."""


class LinearLoop(NamedTuple):
    """A loop with such a state."""

    running: Running
    rows: tuple[int, ...]
    """What each trip computes, by row of the program."""
    state: frozenset[int]
    """What passes the state on."""
    trips: float
    column: Shape | None
    row: Shape | None
    """The factors of what is added in each trip, if that is an outer product."""


@memoized
def linear_loops(signals: Signals) -> tuple[LinearLoop, ...]:
    """The loops of the used window whose trips could run at once."""
    found = []
    for loop in loop_states(signals):
        program, state = loop.running.program, loop.state
        is_alone = bool(state) and not loop.reads_stores
        is_linear = is_alone and all(_is_linear(program, row, state) for row in state)
        if loop.trips >= LEAST_TRIPS and is_linear and not _is_total(program, loop):
            none: tuple[Shape | None, Shape | None] = None, None
            column, row = next(_outer_products(program, state), none)
            if column is None or row is None or not _decays_by_side(program, state, column, row):
                column, row = none
            found.append(LinearLoop(loop.running, loop.rows, state, loop.trips, column, row))
    return tuple(found)


def _is_total(program: Program, loop: LoopState) -> bool:
    """Whether a state only adds up what trips compute, and no trip looks at it."""
    inside = set(loop.rows) - loop.state
    return all(
        program.name_of(row) in (*SAME_ELEMENTS, *_SUMS) and not inside & set(program.users(row))
        for row in loop.state
    )


def _is_linear(program: Program, row: int, state: frozenset[int]) -> bool:
    """Whether a value of the state is a linear function of others."""
    name = program.name_of(row)
    slots = [slot for slot in range(3) if state & set(program.operands(row, slot))]
    if name in (*SAME_ELEMENTS, *_SUMS, "negate"):
        return True
    if name == "multiply":
        return len(slots) == 1
    return (name == "divide" and slots == [0]) or (name == "select" and 0 not in slots)


def _outer_products(program: Program, state: frozenset[int]) -> Iterator[tuple[Shape, Shape]]:
    """The factors of outer products that are added to a state."""
    for row in state:
        if program.name_of(row) not in _SUMS:
            continue
        for of in set(program.operands(row)) - state:
            product = origin(program, of)
            if program.name_of(product) != "multiply":
                continue
            sides = [origin(program, side) for side in program.operands(product)]
            if len(sides) == 2 and all(program.name_of(side) == "broadcast" for side in sides):
                factors = [program.shape_of(program.operands(side, 0)[0]) for side in sides]
                if all(1 < f.elements < program.shape_of(row).elements for f in factors):
                    yield factors[0], factors[1]


def _decays_by_side(program: Program, state: frozenset[int], column: Shape, row: Shape) -> bool:
    """Whether a state decays alike along its columns, or along its rows.

    Then products can take the decay into one of their factors. A decay of each element cannot.
    """
    most = max(column.elements, row.elements)
    for multiply in state:
        if program.name_of(multiply) != "multiply":
            continue
        for factor in set(program.operands(multiply)) - state:
            decay = origin(program, factor)
            sources = program.operands(decay, 0) if program.name_of(decay) == "broadcast" else []
            if any(program.shape_of(of).elements > most for of in sources or [decay]):
                return False
    return True


def in_parallel(signals: Signals) -> list[FasterOperation]:
    """The operations of such loops, with what they would take if trips did not wait."""
    found: list[FasterOperation] = []
    for loop in linear_loops(signals):
        times = [_trip_ns(signals, loop, at_best=at_best) for at_best in (False, True)]
        operations = loop.running.of(loop.rows)
        whole_ns = total_ns(signals, operations)
        if None in times or not operations:
            continue
        count = max(count_of(signals, operation) for operation in operations)
        expected, best = (max(whole_ns - count * (ns or 0.0), 0.0) for ns in times)
        found += in_proportion(signals, operations, (expected / 2, expected, max(best, expected)))
    return found


def _trip_ns(signals: Signals, loop: LinearLoop, *, at_best: bool) -> float | None:
    """What each trip costs if many run at once; None if the device's rates are unknown."""
    program, state = loop.running.program, loop.state
    bytes_per_s = memory_bandwidth(signals, at_peak=at_best)
    size = max(program.shape_of(row).elements for row in state)
    is_outer = loop.column is not None and loop.row is not None
    others = [
        row
        for row in loop.rows
        if row not in state
        and program.name_of(row) not in (*SLICES, *STORES)
        and not (is_outer and program.shape_of(row).elements >= size)
        and not (is_outer and _reads_state(program, row, state))
    ]
    other_ns = arithmetic_ns(signals, program, others)
    if bytes_per_s is None or other_ns is None:
        return None
    moved = sum(_moved(program, row) for row in loop.rows)
    if loop.column is not None and loop.row is not None:
        sides = loop.column.elements, loop.row.elements
        products_ns = flop_time_ns(signals, 2.0 * CHUNK * sum(sides) + 4.0 * size, at_peak=at_best)
        # One number for each pair of trips, for each member of the batch.
        scores = CHUNK * max(sides[0] * sides[1] / size, 1.0)
        scan_ns = (products_ns or 0.0) + scores * _SCORES_OPERATIONS * element_ns(signals)
        scan_ns += 0.0 if at_best else _CHUNK_NS / CHUNK
    else:
        passes = _PASSES[at_best]
        moved += passes * sum(program.shape_of(row).padded_bytes for row in _sums(program, state))
        state_ns = arithmetic_ns(signals, program, state)
        scan_ns = passes * (state_ns or 0.0)
    return max(moved / bytes_per_s * NS_PER_S, other_ns + scan_ns)


def _sums(program: Program, state: frozenset[int]) -> list[int]:
    return [row for row in state if program.name_of(row) in _SUMS]


def _reads_state(program: Program, row: int, state: frozenset[int]) -> bool:
    return program.name_of(row) in PRODUCTS and any(
        origin(program, of) in state for of in program.operands(row)
    )


def _moved(program: Program, row: int) -> float:
    """Bytes of a trip's part of an array of all trips, which it takes or stores.

    A slice of one position may fill a small part of each tile. Many positions fill them.
    """
    name = program.name_of(row)
    whole = program.operands(row, 0) if name in SLICES else [row] if name in STORES else []
    return sum(program.shape_of(of).padded_bytes for of in whole) / float(program.runs[row])
