"""Jacobians that are computed in the costlier direction.

`jax.jacrev` takes one backward pass per output, `jax.jacfwd` one forward pass per input: each maps
a derivative over the rows of an identity matrix. JAX names the operations by these transformations.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.program.graph import SAME_ELEMENTS, Running, readers, running_programs
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation
from tb_perfadvisor.trace.program import Program

_DERIVATIVE = re.compile(r"^(.*?vmap\((?:vmap\()*)(transpose\()?jvp\(")
_PASSES = (*SAME_ELEMENTS, "broadcast", "slice")
"""For several arrays of parameters, the identity is cut into parts."""
_EQUAL = "direction=EQ"


class Jacobian(NamedTuple):
    """The operations that compute a Jacobian, and its size."""

    operations: tuple[XlaOperation, ...]
    outputs: int
    inputs: int
    is_reverse: bool
    """Whether there is a pass for each output; else for each input."""
    line: str


@memoized
def jacobians(signals: Signals) -> tuple[Jacobian, ...]:
    """The Jacobians of the used window whose sizes are known."""
    return tuple(found for running in running_programs(signals) for found in _jacobians(running))


def _jacobians(running: Running) -> Iterator[Jacobian]:
    program = running.program
    passes: dict[str, int] = {}
    for row in program.rows_of(("compare",)):
        dims = program.shape_of(row).dims
        if len(dims) != 2 or dims[0] != dims[1] or not _is_identity(program, row):
            continue
        for reader in readers(program, row, _PASSES):
            derivative = _DERIVATIVE.match(program.paths.get(reader, ""))
            if derivative is not None:
                key = derivative[0]
                passes[key] = max(passes.get(key, 0), dims[0])
    for key, count in passes.items():
        inside = [row for row, path in program.paths.items() if path.startswith(key)]
        other = _other_side(program, inside, count, batches=key.count("vmap(") - 1)
        operations = tuple(o for o in running.operations.values() if o.path.startswith(key))
        if not other or not operations:
            continue
        is_reverse = key.endswith("transpose(jvp(")
        outputs, inputs = (count, other) if is_reverse else (other, count)
        line = next((program.lines[row] for row in inside if row in program.lines), "")
        yield Jacobian(operations, outputs, inputs, is_reverse, line)


def _is_identity(program: Program, row: int) -> bool:
    """Whether a comparison is true on the diagonal of a matrix alone."""
    counted = {program.name_of(of) for of in program.operands(row)}
    return counted == {"iota"} and _EQUAL in program.texts.get(row, "")


def _other_side(program: Program, inside: list[int], count: int, batches: int) -> int:
    """How many numbers each pass returns, for one element of a batch; 0 if unknown."""
    members = set(inside)
    used = {row: set(readers(program, row)) for row in inside}
    # Loops copy what they pass on, and products are rewritten; those have no names.
    named = {row: {reader for reader in used[row] if program.paths.get(reader)} for row in inside}
    for readers_of in (named, used):
        sizes = 0
        for row in inside:
            dims = list(program.shape_of(row).dims)
            is_returned = not readers_of[row] <= members or program.is_result[row]
            if count in dims and (is_returned or not used[row]):
                # What a mapped function returns has the dimensions of batches in front.
                dims.remove(count)
                sizes += math.prod(dims[batches:])
        if sizes:
            return sizes
    return 0
