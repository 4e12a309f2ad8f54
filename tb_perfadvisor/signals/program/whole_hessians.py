"""Hessians of which only products with vectors are used.

JAX names the operations of a Hessian by the transformations that make it: a gradient
(`transpose(jvp())`), differentiated forward (`jvp`) in all directions at once (`vmap`).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.program.graph import (
    PRODUCTS,
    Running,
    count_of,
    origin,
    readers,
    running_programs,
)
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation
from tb_perfadvisor.trace.program import Program

_ALL_DIRECTIONS = re.compile(r"vmap\((?:jvp|transpose\(jvp)\((?:vmap\()?(?:transpose\()?jvp\(")
_OF_PRODUCT = 3.0
"""The product of a Hessian with a vector takes about as long as three of its columns: the gradient
is computed again, and small products are slower than large ones."""


class WholeHessian(NamedTuple):
    """The operations that compute a Hessian, and how many products with vectors are taken."""

    running: Running
    operations: tuple[XlaOperation, ...]
    columns: int
    products: float
    """With a vector, for each Hessian."""
    line: str

    @property
    def remains(self) -> float:
        """The share of the time that the products take without the matrix."""
        return min(_OF_PRODUCT * self.products / self.columns, 1.0)


@memoized
def whole_hessians(signals: Signals) -> tuple[WholeHessian, ...]:
    """The Hessians of the used window that are only multiplied by vectors."""
    found = (_whole_hessian(signals, running) for running in running_programs(signals))
    return tuple(one for one in found if one is not None)


def _whole_hessian(signals: Signals, running: Running) -> WholeHessian | None:
    program = running.program
    inside = {row for row, path in program.paths.items() if _ALL_DIRECTIONS.search(path)}
    products = [
        row
        for row in program.rows_of(PRODUCTS)
        if row not in inside and _is_by_vector(program, row, inside)
    ]
    if not products:
        return None
    operations = running.of(inside)
    times = max((count_of(signals, operation) for operation in operations), default=0)
    count = sum(count_of(signals, operation) for operation in running.of(products))
    if not times or not count:
        return None
    columns = max(max(program.shape_of(row).dims, default=1) for row in products)
    line = next((program.lines[row] for row in products if row in program.lines), "")
    return WholeHessian(running, tuple(operations), columns, count / times, line)


def _is_by_vector(program: Program, product: int, inside: set[int]) -> bool:
    """Whether a product multiplies a Hessian by a vector, as everything does that reads it."""
    result = program.shape_of(product)
    size = max(result.dims, default=0)
    factors = [of for slot in (0, 1) for of in program.operands(product, slot)]
    hessians = [origin(program, of) for of in factors]
    hessians = [row for row in hessians if row in inside]
    if result.elements != size or len(hessians) != 1:
        return False
    if program.shape_of(hessians[0]).elements != size * size:
        return False
    return all(program.name_of(user) in PRODUCTS for user in readers(program, hessians[0]))
