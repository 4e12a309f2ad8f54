"""Matrix products by matrices that are mostly zero by their making.

A diagonal matrix (`jnp.diag`), the same block along the diagonal (`jnp.kron` with `jnp.eye`), and
a triangle of ones, which adds up all elements before each. XLA multiplies by them in full.
"""

from __future__ import annotations

import re
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

Pattern = Literal["diagonal", "triangle"]

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
    """Along the diagonal, or rows of a triangle."""
    line: str


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
            if pattern is None or not products:
                continue
            making = running.of([matrix]) if set(readers(program, matrix)) == {row} else []
            making = [o for o in making if o.op != products[0].op and o.product is None]
            blocks = max(program.shape_of(compared).dims)
            line = program.lines.get(row, "")
            return Structured(products[0], tuple(making), pattern, blocks, line)
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
