"""Squared differences of all pairs of rows, summed up: distances that a product yields, too.

|x − c|² is |x|² + |c|² − 2 x·c, and x·c for all pairs is a matrix product.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.program.graph import Running, origin, running_programs
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation
from tb_perfadvisor.trace.program import Program

_LEAST_TERMS = 1 << 16
_LEAST_SUMMED = 8
"""With fewer coordinates than this, a product has too little to do for each pair."""


class PairwiseDistances(NamedTuple):
    """An operation that sums up the squared differences of all pairs of rows."""

    operation: XlaOperation
    running: Running
    row: int
    """Of the sum, in the program."""
    pairs: int
    summed: int
    """Coordinates of a row."""


@memoized
def pairwise_distances(signals: Signals) -> tuple[PairwiseDistances, ...]:
    """The operations of the used window that compute distances of pairs."""
    found = []
    for running in running_programs(signals):
        program = running.program
        for row in program.rows_of(("reduce",)):
            summed = _summed(program, row)
            pairs = program.shape_of(row).elements
            if summed is None or pairs * summed < _LEAST_TERMS or summed < _LEAST_SUMMED:
                continue
            found += [
                PairwiseDistances(operation, running, row, pairs, summed)
                for operation in running.of([row])
            ]
    return tuple(found)


def _summed(program: Program, reduce: int) -> int | None:
    """How many squared differences each result sums up; None if it is no such sum."""
    squares = [origin(program, of) for of in program.operands(reduce, 0)]
    if len(squares) != 1 or program.name_of(squares[0]) != "multiply":
        return None
    left, right = (
        [origin(program, of) for of in program.operands(squares[0], slot)] for slot in (0, 1)
    )
    if left != right or len(left) != 1 or program.name_of(left[0]) != "subtract":
        return None
    sides = [origin(program, of) for slot in (0, 1) for of in program.operands(left[0], slot)]
    if len(sides) != 2 or any(program.name_of(side) != "broadcast" for side in sides):
        return None
    dims = program.shape_of(left[0]).dims
    kept = [set(program.dimensions.get(side, ())) for side in sides]
    shared = kept[0] & kept[1]
    # Each side has a dimension of its own, and both have what is summed up.
    if not (kept[0] - shared and kept[1] - shared and shared):
        return None
    if kept[0] | kept[1] != set(range(len(dims))):
        return None
    summed = program.shape_of(squares[0]).elements // max(program.shape_of(reduce).elements, 1)
    is_whole = prod(dims[dim] for dim in shared) % max(summed, 1) == 0
    return summed if is_whole else None
