"""Loops on the CPU that map a function over a batch, one element per trip.

In `jax.lax.map` and a `scan` without a carry, a product of a vector by the weights reads them all
for each element. The rows of a batch share the reading. Operations without products gain nothing:
XLA's loops on the CPU cost next to nothing where no profiler looks at each operation.
"""

from __future__ import annotations

from typing import NamedTuple

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.program.graph import PRODUCTS, SAME_ELEMENTS
from tb_perfadvisor.signals.program.loop_state import LoopState, loop_states
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation
from tb_perfadvisor.trace.program import Program

_FEW_ROWS = 8
"""Products of fewer rows read each weight for few multiplications."""


class Mapped(NamedTuple):
    """A loop whose trips need nothing of one another."""

    products: tuple[XlaOperation, ...]
    """Those of few rows by what is the same in all trips."""
    trips: int
    line: str


@memoized
def mapped_loops(signals: Signals) -> tuple[Mapped, ...]:
    """The loops of the used window whose trips only add up or store what they compute."""
    return tuple(found for loop in loop_states(signals) if (found := _mapped(loop)) is not None)


def _mapped(loop: LoopState) -> Mapped | None:
    program = loop.running.program
    if loop.reads_stores or not all(_is_sum(program, row, loop.state) for row in loop.state):
        return None
    narrow = [
        row
        for row in loop.rows
        if program.name_of(row) in PRODUCTS and _is_narrow(program, row, loop.trips)
    ]
    products = loop.running.of(narrow)
    if not products:
        return None
    line = next((program.lines[row] for row in loop.rows if row in program.lines), "")
    return Mapped(tuple(products), int(loop.trips), line)


def _is_sum(program: Program, row: int, state: frozenset[int]) -> bool:
    """Whether a value of the state only adds something to it."""
    if program.name_of(row) in SAME_ELEMENTS:
        return True
    slots = [slot for slot in range(2) if state & set(program.operands(row, slot))]
    return program.name_of(row) == "add" and len(slots) == 1


def _is_narrow(program: Program, row: int, trips: float) -> bool:
    factors = [of for slot in (0, 1) for of in program.operands(row, slot)]
    shared = [of for of in factors if program.runs[of] < trips]
    widest = max((program.shape_of(of).elements for of in shared), default=0)
    result = program.shape_of(row)
    return bool(widest) and result.elements <= _FEW_ROWS * max(result.dims, default=1)
