"""Products in loops that depend on no trip before, and products that share their weights.

Both read the same weights again and again for a few rows, although nothing keeps the rows apart: a
single product of all rows reads the weights once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.program.graph import (
    PRODUCTS,
    SAME_ELEMENTS,
    FasterOperation,
    Running,
    mean_ns,
    operation_needs,
    running_programs,
)
from tb_perfadvisor.signals.program.useful_work import MAPS
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.memory_time import achievable_bandwidth
from tb_perfadvisor.signals.tpu.product_time import flop_time_ns, product_flop
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation
from tb_perfadvisor.trace.hlo_text import parse_instruction
from tb_perfadvisor.trace.program import Program
from tb_perfadvisor.units import NS_PER_S

_FOLLOWED = (*SAME_ELEMENTS, *MAPS, "broadcast", "slice")
_MOST_STEPS = 400


class LoopProduct(NamedTuple):
    """A product that each trip of a loop computes from its own input alone."""

    running: Running
    product: int
    """Its row in the program."""
    trips: float


@memoized
def loop_products(signals: Signals) -> tuple[LoopProduct, ...]:
    """The products in loops that one product before the loop could compute."""
    found = []
    for running in running_programs(signals):
        program = running.program
        inside = [row for row in program.rows_of(PRODUCTS) if program.runs[row] > 1]
        free = {row for row in inside if _depends_on_no_trip(program, row)}
        tied = {program.kernel_of(row) for row in inside if row not in free}
        found += [
            LoopProduct(running, row, float(program.runs[row]))
            for row in sorted(free)
            if program.kernel_of(row) not in tied
        ]
    return tuple(found)


def _depends_on_no_trip(program: Program, product: int) -> bool:
    """Whether a product is computed from slices of arrays that are known before the loop."""
    runs = program.runs[product]
    pending, seen, has_slice = program.operands(product), set[int](), False
    while pending:
        row = pending.pop()
        if row in seen or program.runs[row] < runs:
            continue
        seen.add(row)
        name = program.name_of(row)
        if len(seen) > _MOST_STEPS or program.runs[row] != runs:
            return False
        if name in ("dynamic-slice", "dynamic-slice-start"):
            has_slice = True
            pending += program.operands(row, 0)
        elif name in _FOLLOWED:
            pending += program.operands(row)
        elif name not in ("constant", "iota"):
            return False
    return has_slice


def before_loops(signals: Signals) -> list[FasterOperation]:
    """The operations of such products, with their part of one product before the loop.

    That writes all results, which the loop reads again, and reads the weights once.
    """
    bytes_per_s = achievable_bandwidth(signals)
    if bytes_per_s is None:
        return []
    needs: dict[int, float] = defaultdict(float)
    operations: dict[int, XlaOperation] = {}
    for found in loop_products(signals):
        program = found.running.program
        parsed = parse_instruction(program.texts.get(found.product, ""))
        flop = product_flop(parsed) if parsed is not None else None
        product_ns = flop_time_ns(signals, flop) if flop is not None else None
        if product_ns is None:
            return []
        factors = [program.shape_of(of).padded_bytes for of in program.operands(found.product)]
        result = program.shape_of(found.product).padded_bytes
        moved = 2 * result + min(factors, default=0) + max(factors, default=0) / found.trips
        for operation in found.running.of([found.product]):
            operations[operation.op] = operation
            needs[operation.op] += max(product_ns, moved / bytes_per_s * NS_PER_S)
    faster = []
    beside = {one.operation.op: one.needed_ns for one in operation_needs(signals)}
    for op, need in needs.items():
        now = mean_ns(signals, operations[op])
        expected = min(need, now)
        # What else the operation computes of each trip is computed before the loop, too.
        rest = min(beside.get(op, 0.0), now)
        expected, best = max(expected, rest), max(min(need / 2, now), rest)
        faster.append(FasterOperation(operations[op], expected, best, (expected + now) / 2))
    return [*faster, *_with_weights_on_chip(signals, operations)]


def _with_weights_on_chip(
    signals: Signals, gone: dict[int, XlaOperation]
) -> Iterator[FasterOperation]:
    """The other products of these loops, whose weights may stay on the chip then, at best.

    With less to read in each trip, XLA may keep what the loop still needs. Nothing is expected.
    """
    bytes_per_s = achievable_bandwidth(signals)
    loops = {(id(found.running), found.trips) for found in loop_products(signals)}
    for running in running_programs(signals):
        program = running.program
        for row in program.rows_of(PRODUCTS):
            if (id(running), float(program.runs[row])) not in loops or bytes_per_s is None:
                continue
            parsed = parse_instruction(program.texts.get(row, ""))
            flop = product_flop(parsed) if parsed is not None else None
            product_ns = flop_time_ns(signals, flop, at_peak=True) if flop is not None else None
            weights = max(
                (program.shape_of(of) for of in program.operands(row)),
                key=lambda shape: shape.padded_bytes,
            )
            for operation in running.of([row]):
                if product_ns is None or operation.op in gone or weights.memory_space:
                    continue
                now = mean_ns(signals, operation)
                kept = now - weights.padded_bytes / bytes_per_s * NS_PER_S
                yield FasterOperation(operation, now, min(max(kept, product_ns), now), now)
