"""Arguments of few bits that a program widens before it multiplies them.

Widening a whole matrix, and scaling it, takes an operation for each element. A product that widens
its factor itself and scales its result reads the narrow numbers, and scales far fewer.
"""

from __future__ import annotations

from tb_perfadvisor.signals.program.graph import (
    PRODUCTS,
    SAME_ELEMENTS,
    FasterOperation,
    Running,
    mean_ns,
    running_programs,
)
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.memory_time import needed_ns
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation
from tb_perfadvisor.trace.program import Program

_NARROW_BITS = 8
_LEAST_ELEMENTS = 1 << 20
_SCALES = ("multiply", "add", "subtract", "broadcast")


def without_widening(signals: Signals) -> list[FasterOperation]:
    """The operations that widen matrices and multiply nothing, if they were not needed.

    At least, the narrow numbers have to be read.
    """
    faster = []
    for running in running_programs(signals):
        for operation in _widening(running):
            now = mean_ns(signals, operation)
            floor = needed_ns(signals, operation)
            kept = min(floor, now) if floor > 0 else 0.0
            faster.append(FasterOperation(operation, kept, 0.0, (kept + now) / 2))
    return faster


def _widening(running: Running) -> list[XlaOperation]:
    program = running.program
    rows = [
        row
        for row in program.rows_of(("convert",))
        if program.shape_of(row).elements >= _LEAST_ELEMENTS
        and _is_of_narrow_argument(program, row)
    ]
    return [o for o in running.of(rows) if o.product is None and _feeds_product(running, o, rows)]


def _is_of_narrow_argument(program: Program, row: int) -> bool:
    """Whether it widens an argument of eight bits or less."""
    before = program.operands(row, 0)
    while before and program.name_of(before[0]) in ("copy", "copy-start", "bitcast", "slice"):
        before = program.operands(before[0], 0)
    if len(before) != 1 or program.name_of(before[0]) != "parameter":
        return False
    narrow, wide = program.shape_of(before[0]), program.shape_of(row)
    return narrow.dtype != "pred" and narrow.element_bits <= _NARROW_BITS < wide.element_bits


def _feeds_product(running: Running, operation: XlaOperation, rows: list[int]) -> bool:
    """Whether what an operation widens is only scaled and moved before it is multiplied."""
    program = running.program
    pending = [row for row in rows if program.kernel_of(row) == operation.name]
    seen = set(pending)
    while pending:
        for user in program.users(pending.pop()):
            name = program.name_of(user)
            if name in PRODUCTS:
                return True
            if user not in seen and name in (*SAME_ELEMENTS, *_SCALES):
                seen.add(user)
                pending.append(user)
    return False
