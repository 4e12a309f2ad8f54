"""Attention that stores its scores in the device's memory.

A product of queries and keys has far more elements than these. If its softmax and the product with
the values are operations of their own, the scores are written and read several times. A fused
kernel computes them block by block, and keeps them on the chip.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import nan, prod
from typing import NamedTuple

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.program.argument_reads import runs_of
from tb_perfadvisor.signals.program.graph import (
    PRODUCTS,
    SAME_ELEMENTS,
    FasterOperation,
    Running,
    count_of,
    in_proportion,
    running_programs,
    total_ns,
)
from tb_perfadvisor.signals.program.useful_work import MAPS
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.memory_time import memory_bandwidth, stored_bytes
from tb_perfadvisor.signals.tpu.multiplications import product_of
from tb_perfadvisor.signals.tpu.product_time import flop_time_ns, product_flop
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation
from tb_perfadvisor.trace.hlo_text import Instruction, Shape, parse_instruction
from tb_perfadvisor.trace.program import Program
from tb_perfadvisor.units import NS_PER_S

_LEAST_ELEMENTS = 1 << 22
_LEAST_LENGTH = 512
"""Of queries and keys. Shorter ones are one block of a fused kernel."""
_EXPANSION = 4
"""Scores have so many times the elements of queries, keys or results."""
_FUSED_RATE = 0.5
"""Of the rate of large products: a fused kernel computes exponentials beside small ones."""
_SUMS = ("reduce", "reduce-window")
_MOST_STEPS = 1000


class StoredScores(NamedTuple):
    """The attention of a program, or that part with scores of one size."""

    running: Running
    scores: Shape
    row: int
    """Of a product that computes them."""
    flop: float
    """Of a fused kernel, for one run of the program."""
    operations: tuple[XlaOperation, ...]
    """Those that compute, read or write scores."""


@memoized
def stored_scores(signals: Signals) -> tuple[StoredScores, ...]:
    """The attention of the used window whose scores go through the device's memory."""
    return tuple(found for running in running_programs(signals) for found in _stored(running))


def _stored(running: Running) -> Iterator[StoredScores]:
    program = running.program
    makers: dict[int, list[int]] = {}
    for row in program.rows_of(PRODUCTS):
        if _makes_scores(program, row):
            makers.setdefault(program.shape_of(row).elements, []).append(row)
    for size, rows in makers.items():
        values, takers = _followed(program, rows, size)
        names = {program.name_of(row) for row in values}
        if not takers or "exponential" not in names or not names & set(_SUMS):
            continue
        # The backward pass of a fused kernel computes the scores once more.
        again = rows[:1] if len(rows) > 1 else []
        flop = [_flop(program, row) * float(program.runs[row]) for row in (*rows, *takers, *again)]
        operations = running.of([*rows, *takers, *values])
        if sum(flop) > 0 and any(_score_bytes(o, size) for o in operations):
            shape = program.shape_of(rows[0])
            yield StoredScores(running, shape, rows[0], sum(flop), tuple(operations))


def _makes_scores(program: Program, row: int) -> bool:
    """Whether a product has a result far larger than its factors, for each head by itself."""
    parsed, size = _parsed(program, row), program.shape_of(row).elements
    product = product_of(parsed, nan) if parsed is not None and size >= _LEAST_ELEMENTS else None
    return (
        product is not None
        and prod(product.batch) > 1
        and min(prod(product.rows), prod(product.columns)) >= _LEAST_LENGTH
        and all(_EXPANSION * program.shape_of(of).elements <= size for of in program.operands(row))
    )


def _followed(program: Program, makers: list[int], size: int) -> tuple[list[int], list[int]]:
    """What is computed of some scores, and the products that take them up."""
    pending, seen, takers = list(makers), set(makers), list[int]()
    while pending and len(seen) < _MOST_STEPS:
        row = pending.pop()
        for user in program.users(row):
            name, elements = program.name_of(user), program.shape_of(user).elements
            if user in seen:
                continue
            if name in PRODUCTS:
                if _EXPANSION * elements <= size and program.shape_of(row).elements == size:
                    seen.add(user)
                    takers.append(user)
                continue
            is_map = name in (*SAME_ELEMENTS, *MAPS, "broadcast") and elements <= size
            if is_map or name in _SUMS:
                seen.add(user)
                pending.append(user)
    return [row for row in seen if row not in takers], takers


def _parsed(program: Program, row: int) -> Instruction | None:
    return parse_instruction(program.texts.get(row, ""))


def _flop(program: Program, row: int) -> float:
    parsed = _parsed(program, row)
    return (product_flop(parsed) or 0.0) if parsed is not None else 0.0


def _score_bytes(operation: XlaOperation, size: int) -> int:
    """Bytes of scores that an operation moves to and from the device's memory."""
    arrays = (*operation.instruction.results, *operation.instruction.operands)
    return stored_bytes(*(shape for shape in arrays if shape.elements == size))


def in_one_kernel(signals: Signals) -> list[FasterOperation]:
    """The operations of such attention, if a fused kernel computed it.

    Only those count that move scores, if moving them takes most of their time.
    """
    found: list[FasterOperation] = []
    for attention in stored_scores(signals):
        size, usual = attention.scores.elements, memory_bandwidth(signals, at_peak=False)
        operations = [o for o in attention.operations if _score_bytes(o, size)]
        now_ns = total_ns(signals, operations)
        moved = sum(_score_bytes(o, size) * count_of(signals, o) for o in operations)
        runs = runs_of(signals, attention.running)
        products_ns = flop_time_ns(signals, attention.flop * runs)
        peak_ns = flop_time_ns(signals, attention.flop * runs, at_peak=True)
        if usual is None or products_ns is None or peak_ns is None:
            continue
        if 2 * moved / usual * NS_PER_S < now_ns:
            continue
        others = sum(_other_bytes(o, size) * count_of(signals, o) for o in operations)
        floor_ns = others / usual * NS_PER_S
        expected = max(now_ns - max(products_ns / _FUSED_RATE, floor_ns), 0.0)
        best = max(now_ns - max(peak_ns, floor_ns), expected)
        found += in_proportion(signals, operations, (expected / 2, expected, best))
    return found


def _other_bytes(operation: XlaOperation, size: int) -> int:
    instruction = operation.instruction
    whole = stored_bytes(*instruction.results, *instruction.operands)
    return whole - _score_bytes(operation, size)
