"""Products with matrices of zeros and a few ones that a program makes of indices.

Comparing indices with positions for equality makes a one-hot matrix. Whatever it is multiplied by,
the result has zeros in the same places, so that a product with it adds up a few rows of the other
factor: a look-up by index does the same.
"""

from __future__ import annotations

from collections.abc import Iterator

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.program.graph import PRODUCTS, SAME_ELEMENTS, origin, running_programs
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.product_time import product_flop
from tb_perfadvisor.trace.hlo_text import parse_instruction
from tb_perfadvisor.trace.program import Program

_KEEPS_ZEROS = ("multiply", "and")
_SPREADS = (*SAME_ELEMENTS, "broadcast")
_LEAST_ELEMENTS = 1 << 16
_MOST_CHOICES = 8
"""Ones that are added up for each row, such as the experts of a token."""
_MOST_STEPS = 40


@memoized
def one_hot_operations(signals: Signals, *, smallest_table: int) -> frozenset[int]:
    """The operations, by row of the `HloTable`, that multiply by such a matrix.

    Args:
        signals: The worker's facts.
        smallest_table: Rows of the other factor, of products that count.
    """
    return frozenset(
        operation.op
        for running in running_programs(signals)
        for operation in running.of(_products(running.program, smallest_table))
    )


@memoized
def one_hot_makers(signals: Signals, *, smallest_table: int) -> frozenset[int]:
    """The operations, by row of the `HloTable`, that make such matrices for these products alone.

    Args:
        signals: The worker's facts.
        smallest_table: Rows of the other factor, of products that count.
    """
    return frozenset(
        operation.op
        for running in running_programs(signals)
        for operation in running.of(_made(running.program, smallest_table))
    )


def _products(program: Program, smallest_table: int) -> Iterator[int]:
    for row in program.rows_of(PRODUCTS):
        factors = (of for slot in (0, 1) for of in program.operands(row, slot))
        is_one_hot = any(_is_large_one_hot(program, of) for of in factors)
        if is_one_hot and _contracted(program, row) > smallest_table:
            yield row


def _made(program: Program, smallest_table: int) -> list[int]:
    """The rows of one-hot matrices, and of what they are made of, that nothing else reads."""
    products = set(_products(program, smallest_table))
    pending = [of for row in products for slot in (0, 1) for of in program.operands(row, slot)]
    matrices = set[int]()
    while pending:
        row = pending.pop()
        if row not in matrices and _is_large_one_hot(program, row):
            matrices.add(row)
            pending += program.operands(row)
    pending = [
        row
        for row in matrices
        if program.is_result[row] or set(program.users(row)) - matrices - products
    ]
    needed = set[int]()
    while pending:
        row = pending.pop()
        if row not in needed:
            needed.add(row)
            pending += matrices.intersection(program.operands(row))
    stays = {program.kernel_of(row) for row in products | needed}
    return [row for row in sorted(matrices) if program.kernel_of(row) not in stays]


def _is_large_one_hot(program: Program, row: int) -> bool:
    return program.shape_of(row).elements >= _LEAST_ELEMENTS and _is_one_hot(program, row, 0)


def _contracted(program: Program, product: int) -> float:
    """How many terms each element of a product sums up."""
    parsed = parse_instruction(program.texts.get(product, ""))
    flop = product_flop(parsed) if parsed is not None else None
    return (flop or 0.0) / 2 / max(program.shape_of(product).elements, 1)


def _is_one_hot(program: Program, row: int, depth: int) -> bool:
    """Whether most elements of a value are zero because indices differ from positions."""
    place = origin(program, row, _SPREADS)
    if depth > _MOST_STEPS:
        return False
    name = program.name_of(place)
    if name == "compare":
        return _compares_with_positions(program, place)
    if name == "select":
        # Chosen where indices equal positions, and zero elsewhere.
        others = [origin(program, of, _SPREADS) for of in program.operands(place, 2)]
        is_zero = bool(others) and all(program.name_of(of) == "constant" for of in others)
        return is_zero and any(
            _is_one_hot(program, of, depth + 1) for of in program.operands(place, 0)
        )
    if name == "reduce":
        # The sum over the few experts of a token is zero wherever all of them are.
        summed = program.operands(place, 0)
        size = program.shape_of(place).elements
        return len(summed) == 1 and (
            program.shape_of(summed[0]).elements <= _MOST_CHOICES * size
            and _is_one_hot(program, summed[0], depth + 1)
        )
    if name in _KEEPS_ZEROS:
        factors = (of for slot in (0, 1) for of in program.operands(place, slot))
        return any(_is_one_hot(program, of, depth + 1) for of in factors)
    return False


def _compares_with_positions(program: Program, compare: int) -> bool:
    """Whether a comparison is of indices, which the data determine, with positions."""
    if "direction=EQ" not in program.texts.get(compare, ""):
        return False
    sides = [
        program.name_of(origin(program, of, _SPREADS))
        for slot in (0, 1)
        for of in program.operands(compare, slot)
    ]
    # Two iotas make an identity matrix.
    return len(sides) == 2 and sides.count("iota") == 1 and "constant" not in sides
