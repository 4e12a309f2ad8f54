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
    origin,
    running_programs,
)
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
    by_factors: dict[frozenset[int], list[int]] = {}
    for row in large:
        factors = _factors(program, row)
        if factors is not None and _contracts_one_size(program, row):
            by_factors.setdefault(frozenset(factors), []).append(row)
    taken = set[int]()
    for rows in by_factors.values():
        for first, second in combinations(rows, 2):
            one, other = _factors(program, first), _factors(program, second)
            is_swapped = one is not None and other is not None and one == other[::-1]
            is_equal = program.shape_of(first).elements == program.shape_of(second).elements
            if is_swapped and is_equal and not taken & {first, second}:
                taken |= {first, second}
                yield TwinProducts(running, first, second)


def _factors(program: Program, row: int) -> tuple[int, int] | None:
    """What a product's two factors are computed from, in order; None unless they differ."""
    sides = [program.operands(row, slot) for slot in (0, 1)]
    if any(len(side) != 1 for side in sides):
        return None
    left, right = (origin(program, side[0], MOVES) for side in sides)
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
    """The operations of the second products, if they read the result of the first instead."""
    faster = []
    for twins in twin_products(signals):
        parsed = parse_instruction(twins.running.program.texts.get(twins.second, ""))
        flop = product_flop(parsed) if parsed is not None else None
        for operation in twins.running.of([twins.second]):
            product_ns = flop_time_ns(signals, flop) if flop is not None else None
            bytes_ns = needed_ns(signals, operation)
            if product_ns is None or bytes_ns != bytes_ns:
                continue
            now = mean_ns(signals, operation)
            # What else the operation does with the result is needed.
            expected = min(max(now - product_ns, bytes_ns), now)
            faster.append(
                FasterOperation(operation, expected, min(bytes_ns, expected), (expected + now) / 2)
            )
    return faster
