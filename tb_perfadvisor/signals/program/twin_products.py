"""Products that are each other's transpose: x·yᵀ and y·xᵀ have the same numbers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from math import isclose, sqrt
from typing import NamedTuple

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.program.graph import (
    MOVES,
    PRODUCTS,
    FasterOperation,
    Running,
    mean_ns,
    running_programs,
)
from tb_perfadvisor.signals.program.same_values import POINTWISE, SameValues
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.memory_time import needed_ns
from tb_perfadvisor.signals.tpu.product_time import flop_time_ns, product_flop
from tb_perfadvisor.trace.hlo_text import parse_instruction
from tb_perfadvisor.trace.program import Program

_LEAST_ELEMENTS = 1 << 20


class TwinProducts(NamedTuple):
    """Two products of the same factors, of which one is the other's transpose."""

    running: Running
    first: int
    second: int
    """Their rows in the program."""
    joined: tuple[int, ...]
    """What is computed from the second alone and could be from both: functions of each element,
    and products by factors by which functions of the first are multiplied, too. Gradients of both
    are added before these products instead of behind them."""


@memoized
def twin_products(signals: Signals) -> tuple[TwinProducts, ...]:
    """The pairs of such products in the programs of the used window."""
    return tuple(found for running in running_programs(signals) for found in _twins(running))


def _twins(running: Running) -> Iterator[TwinProducts]:
    program = running.program
    large = [
        row
        for row in program.rows_of(PRODUCTS)
        if program.shape_of(row).elements >= _LEAST_ELEMENTS
    ]
    same = SameValues(program)
    factors_of = {
        row: factors
        for row in large
        if (factors := _factors(program, row, same)) is not None
        and _contracts_one_size(program, row)
    }
    by_factors: dict[frozenset[int], list[int]] = {}
    for row, factors in factors_of.items():
        by_factors.setdefault(frozenset(factors), []).append(row)
    taken = set[int]()
    for rows in by_factors.values():
        for first, second in combinations(rows, 2):
            is_swapped = factors_of[first] == factors_of[second][::-1]
            is_equal = program.shape_of(first).elements == program.shape_of(second).elements
            if is_swapped and is_equal and not taken & {first, second}:
                taken |= {first, second}
                yield TwinProducts(running, first, second, _joined(program, first, second, same))


def _joined(program: Program, first: int, second: int, same: SameValues) -> tuple[int, ...]:
    """The rows that go if the second product is a view of the first; none if it is returned."""
    one, other = (_functions_of(program, row) for row in (first, second))
    if any(program.is_result[row] for row in other):
        return ()
    factors = {of for row in _products_of(program, one) for of in _others(program, row, one, same)}
    products = _products_of(program, other - one)
    joined = [row for row in products if factors & _others(program, row, other, same)]
    needed = {*one, second, *products}.difference(joined)
    kept = {program.kernel_of(row) for row in needed}
    return tuple(
        row for row in (*joined, *sorted(other - one)) if program.kernel_of(row) not in kept
    )


def _functions_of(program: Program, row: int) -> set[int]:
    """A value, and what is computed from it element by element."""
    elements, pending, found = program.shape_of(row).elements, [row], {row}
    while pending:
        for user in program.users(pending.pop()):
            is_function = program.name_of(user) in POINTWISE or program.name_of(user) in MOVES
            if user not in found and is_function and program.shape_of(user).elements == elements:
                found.add(user)
                pending.append(user)
    return found


def _products_of(program: Program, rows: set[int]) -> list[int]:
    users = {user for row in rows for user in program.users(row)}
    return sorted(user for user in users if program.name_of(user) in PRODUCTS)


def _others(program: Program, product: int, rows: set[int], same: SameValues) -> set[int]:
    """The factors of a product that are not among some values."""
    return {same.of(of) for of in program.operands(product) if of not in rows}


def _factors(program: Program, row: int, same: SameValues) -> tuple[int, int] | None:
    """A product's two factors, in order; None unless they differ."""
    sides = [program.operands(row, slot) for slot in (0, 1)]
    if any(len(side) != 1 for side in sides):
        return None
    left, right = (same.of(side[0]) for side in sides)
    return None if left == right else (left, right)


def _contracts_one_size(program: Program, row: int) -> bool:
    """Whether the size that a product contracts is unlike its rows and columns.

    Then the same factors allow no other product with as many results.
    """
    a, b = (program.shape_of(program.operands(row, slot)[0]).elements for slot in (0, 1))
    c = program.shape_of(row).elements
    contracted = sqrt(a * b / c)
    return not isclose(contracted, sqrt(a * c / b)) and not isclose(contracted, sqrt(b * c / a))


def without_twins(signals: Signals) -> list[FasterOperation]:
    """The operations of the second products, if they read the result of the first instead.

    Where what is computed from both can be joined, the second product need not be stored, either.
    """
    faster = []
    for twins in twin_products(signals):
        joined = twins.running.of(twins.joined)
        parsed = parse_instruction(twins.running.program.texts.get(twins.second, ""))
        flop = product_flop(parsed) if parsed is not None else None
        for operation in twins.running.of([twins.second]):
            product_ns = flop_time_ns(signals, flop) if flop is not None else None
            bytes_ns = needed_ns(signals, operation)
            if product_ns is None or bytes_ns != bytes_ns:
                continue
            now = mean_ns(signals, operation)
            # What else the operation does with the result is needed.
            kept = min(max(now - product_ns, bytes_ns), now)
            expected, best = (0.0, 0.0) if joined else (kept, min(bytes_ns, kept))
            faster.append(FasterOperation(operation, expected, best, (kept + now) / 2))
        faster += [FasterOperation(o, 0.0, 0.0, mean_ns(signals, o) / 2) for o in joined]
    return faster
