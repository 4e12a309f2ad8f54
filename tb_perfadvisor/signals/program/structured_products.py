"""Matrix products by matrices that are mostly zero by their making.

A diagonal matrix (`jnp.diag`), the same block along the diagonal (`jnp.kron` with `jnp.eye`), and
a triangle of ones, which adds up all elements before each. XLA multiplies by them in full. So it
does by a Kronecker product of two smaller matrices, by which two smaller products do the same.
"""

from __future__ import annotations

import re
from math import prod
from typing import Literal, NamedTuple

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.program.graph import (
    SAME_ELEMENTS,
    Running,
    origin,
    readers,
    running_programs,
)
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation
from tb_perfadvisor.trace.program import Program

Pattern = Literal["diagonal", "triangle", "kronecker"]

Dims = tuple[int, int]

_SPREAD = (*SAME_ELEMENTS, "broadcast")
_CHOOSES = ("select", "multiply")
_JACOBIAN = re.compile(r"vmap\(.*jvp\(")
"""JAX maps derivatives over the rows of an identity matrix."""


class Structured(NamedTuple):
    """A product by such a matrix."""

    product: XlaOperation
    making: tuple[XlaOperation, ...]
    """What makes the matrix, if nothing else needs it."""
    pattern: Pattern
    blocks: int
    """Along the diagonal, or rows of a triangle or of a Kronecker product."""
    line: str
    remains: float
    """The least part of the multiplications that gives the same result."""


@memoized
def structured_products(signals: Signals) -> tuple[Structured, ...]:
    """The products of the used window by matrices that are mostly zero by their making."""
    return tuple(
        found
        for running in running_programs(signals)
        for row in running.program.rows_of(("dot",))
        if (found := _structured(running, row)) is not None
    )


def _structured(running: Running, row: int) -> Structured | None:
    program, products = running.program, running.of([row])
    if _JACOBIAN.search(program.paths.get(row, "")):
        return None
    for slot in (0, 1):
        for factor in program.operands(row, slot):
            matrix = origin(program, factor)
            pattern, compared = _pattern(program, matrix)
            factors = None if pattern is not None else _kronecker_factors(program, matrix)
            if factors is not None:
                pattern = "kronecker"
            if pattern is None or not products:
                continue
            making = running.of([matrix]) if set(readers(program, matrix)) == {row} else []
            making = [o for o in making if o.op != products[0].op and o.product is None]
            blocks = max(program.shape_of(compared).dims)
            line = program.lines.get(row, "")
            remains = 1 / blocks if factors is None else _of_two_products(*factors)
            return Structured(products[0], tuple(making), pattern, blocks, line, remains)
    return None


def _pattern(program: Program, matrix: int) -> tuple[Pattern | None, int]:
    """Where a matrix is not zero, and the comparison that says so."""
    if _is_of_positions(program, matrix, "EQ"):
        return "diagonal", matrix
    if program.name_of(matrix) not in _CHOOSES:
        return None, matrix
    slots = (0,) if program.name_of(matrix) == "select" else (0, 1)
    for slot in slots:
        for of in program.operands(matrix, slot):
            source = origin(program, of, _SPREAD)
            if _is_of_positions(program, source, "EQ"):
                return "diagonal", source
            is_plain = program.name_of(matrix) == "select" and all(
                program.name_of(origin(program, other, _SPREAD)) == "constant"
                for side in (1, 2)
                for other in program.operands(matrix, side)
            )
            if is_plain and _is_of_positions(program, source, "GE", "GT", "LE", "LT"):
                return "triangle", source
    return None, matrix


def _kronecker_factors(program: Program, matrix: int) -> tuple[Dims, Dims] | None:
    """The rows and columns of the two factors; None if a matrix is no Kronecker product.

    Something on its diagonal may have been added to it.
    """
    if program.name_of(matrix) == "add":
        terms = [origin(program, o) for slot in (0, 1) for o in program.operands(matrix, slot)]
        full = [term for term in terms if _pattern(program, term)[0] != "diagonal"]
        if len(terms) != 2 or len(full) != 1:
            return None
        matrix = full[0]
    dims = program.shape_of(matrix).dims
    if program.name_of(matrix) != "multiply" or len(dims) != 4 or min(dims) < 2:
        return None
    spread = [program.operands(matrix, slot) for slot in (0, 1)]
    places = [
        program.dimensions.get(of, ())
        for operands in spread
        for of in operands
        if program.name_of(of) == "broadcast"
    ]
    if sorted(places) != [(0, 2), (1, 3)]:
        return None
    return (dims[0], dims[2]), (dims[1], dims[3])


def _of_two_products(first: Dims, second: Dims) -> float:
    """The part of the multiplications: of `first @ x @ second.T`, in the cheaper order."""
    (rows, columns), (blocks, inside) = first, second
    left = rows * columns * inside + rows * inside * blocks
    right = columns * inside * blocks + rows * columns * blocks
    return min(left, right) / (prod(first) * prod(second))


def _is_of_positions(program: Program, row: int, *directions: str) -> bool:
    """Whether a value compares the row and the column of each element of a square."""
    dims = program.shape_of(row).dims
    if program.name_of(row) != "compare" or len(dims) != 2 or dims[0] != dims[1]:
        return False
    text = program.texts.get(row, "")
    if not any(f"direction={direction}" in text for direction in directions):
        return False
    return all(
        program.name_of(origin(program, of, (*_SPREAD, "add"))) == "iota"
        for of in program.operands(row)
    )
