"""Values of which only the order matters, and what keeps that order.

An argmax, or a sort that returns places, reads its values to rank them. A function that grows with
its argument keeps the ranks, and so does a scale or a shift that all values of a row share. So the
place of the largest probability is that of the largest logit, and no probability is needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.program.achievable_rate import arithmetic_ns
from tb_perfadvisor.signals.program.graph import (
    PRODUCTS,
    FasterOperation,
    Running,
    mean_ns,
    origin,
    running_programs,
)
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.memory_time import achievable_bandwidth, stored_bytes
from tb_perfadvisor.signals.tpu.product_time import flop_time_ns, product_flop
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation
from tb_perfadvisor.trace.hlo_text import parse_instruction
from tb_perfadvisor.trace.program import Program
from tb_perfadvisor.units import NS_PER_S

_PLACES = (1,)
"""Of an argmax, or a sort of values and positions: what it returns second."""
_GROWING = (
    *("exponential", "exponential-minus-one", "log", "log-plus-one", "logistic", "tanh"),
    *("sqrt", "cbrt", "erf"),
)
_SAME = ("bitcast", "copy", "convert", "reduce-precision", "reshape")
_POSITIVE = ("exponential", "logistic")
_SUMS = ("reduce", "reduce-window")
_CONSTANTS = ("constant", "iota", "parameter")
_MOST_STEPS = 64
_WINDOW = r"window=\{size=([0-9x]+)"


class OnlyRanked(NamedTuple):
    """Values that are computed to be ranked, and need not be."""

    running: Running
    ranking: int
    """The row of the argmax, or of the sort."""
    source: int
    """The row of what has the same order."""
    needless: frozenset[int]
    """The rows of what is computed from it for the ranking alone."""


@memoized
def only_ranked(signals: Signals) -> tuple[OnlyRanked, ...]:
    """The rankings of the used window that could rank something simpler."""
    return tuple(
        found
        for running in running_programs(signals)
        for row in running.program.rows_of(("reduce", "sort"))
        if (found := _ranked(running, row)) is not None
    )


def _ranked(running: Running, ranking: int) -> OnlyRanked | None:
    program = running.program
    axis = _axis(program, ranking)
    if axis is None or program.elements_read.get(ranking) != _PLACES:
        return None
    source, is_other = ranking, False
    for _ in range(_MOST_STEPS):
        before = (
            program.operands(source, 0) if source == ranking else _before(program, source, axis)
        )
        if len(before) != 1:
            break
        is_other |= source != ranking and program.name_of(source) not in _SAME
        source = before[0]
    needless = _between(program, source, ranking) if is_other else frozenset[int]()
    return OnlyRanked(running, ranking, source, needless) if needless else None


def _axis(program: Program, ranking: int) -> int | None:
    """The dimension along which values are ranked: the one that the positions count."""
    for place in program.operands(ranking, 1):
        dims = program.dimensions.get(place, ())
        counts = origin(program, place, ("broadcast", *_SAME))
        if program.name_of(counts) == "iota" and len(dims) == 1:
            return dims[0]
    return None


def _before(program: Program, row: int, axis: int) -> list[int]:
    """The operand whose order along an axis a value has; empty if there is none."""
    name, operands = program.name_of(row), program.operands(row)
    dims = program.shape_of(row).dims
    if name in (*_GROWING, *_SAME):
        return [of for of in operands if program.shape_of(of).dims == dims]
    slots = (
        (0,) if name in ("subtract", "divide") else (0, 1) if name in ("add", "multiply") else ()
    )
    for slot in slots:
        others = program.operands(row, 1 - slot)
        needs_sign = name in ("divide", "multiply")
        if others and all(
            _is_equal_along(program, of, axis) and (not needs_sign or _is_positive(program, of))
            for of in others
        ):
            return program.operands(row, slot)
    return []


def _is_equal_along(program: Program, row: int, axis: int) -> bool:
    """Whether all elements along an axis are equal."""
    row = origin(program, row, ("convert", "copy", *_GROWING))
    name, dims = program.name_of(row), program.shape_of(row).dims
    if name == "broadcast":
        return axis not in program.dimensions.get(row, (axis,))
    # XLA writes a sum that is repeated along its axis as a window as wide as twice the axis.
    window = re.search(_WINDOW, program.texts.get(row, "")) if name == "reduce-window" else None
    sizes = [int(size) for size in window[1].split("x")] if window else []
    return len(sizes) == len(dims) and sizes[axis] >= 2 * dims[axis] - 1


def _is_positive(program: Program, row: int) -> bool:
    """Whether a value is a sum of positive ones, or positive itself."""
    row = origin(program, row, ("broadcast", "convert", *_SAME))
    if program.name_of(row) in _SUMS:
        row = next(iter(program.operands(row, 0)), row)
    return program.name_of(origin(program, row, _SAME)) in _POSITIVE


def _between(program: Program, source: int, ranking: int) -> frozenset[int]:
    """What is computed from a value for a ranking; empty if anything else needs some of it."""
    found, pending = set[int](), list(program.operands(ranking, 0))
    while pending:
        row = pending.pop()
        if row in found or row == source or program.name_of(row) in _CONSTANTS:
            continue
        if len(found) > _MOST_STEPS or program.name_of(row) in PRODUCTS:
            return frozenset()
        found.add(row)
        pending += program.operands(row)
    needed = {user for row in found for user in program.users(row)} - found - {ranking}
    return (
        frozenset() if needed or any(program.is_result[row] for row in found) else frozenset(found)
    )


def ranking_the_source(signals: Signals) -> list[FasterOperation]:
    """The operations that rank or prepare for it, with what ranking the source would take.

    XLA fuses the ranking with what computes the source if that computes something for it now, so
    that the values are neither written nor read.
    """
    faster: dict[int, FasterOperation] = {}
    for found in only_ranked(signals):
        program, needless = found.running.program, found.needless
        ranks_in = program.kernel_of(found.ranking)
        fuses = program.kernel_of(found.source)
        for operation in found.running.of([*needless, found.ranking]):
            now = mean_ns(signals, operation)
            rows = {row for row in _rows_of(program, operation.name) if row not in needless}
            is_gone = not rows - {found.ranking} and fuses != ranks_in
            if operation.name == fuses:
                rows.add(found.ranking)
            times = _times(signals, found, operation, rows)
            if times is None:
                continue
            is_fused = fuses in found.running.operations and is_gone
            expected = 0.0 if is_fused and _computes_some(found, fuses) else min(times[0], now)
            best = 0.0 if is_fused else min(times[1], expected)
            faster[operation.op] = FasterOperation(operation, expected, best, (expected + now) / 2)
    return list(faster.values())


def _computes_some(found: OnlyRanked, kernel: str) -> bool:
    return any(found.running.program.kernel_of(row) == kernel for row in found.needless)


def _rows_of(program: Program, kernel: str) -> Iterator[int]:
    return (row for row in range(len(program)) if program.kernel_of(row) == kernel)


def _times(
    signals: Signals, found: OnlyRanked, operation: XlaOperation, rows: set[int]
) -> tuple[float, float] | None:
    """What an operation takes without the needless values, as usual and at best."""
    program, bytes_per_s = found.running.program, achievable_bandwidth(signals)
    work_ns = arithmetic_ns(signals, program, rows)
    if bytes_per_s is None or work_ns is None:
        return None
    gone = {(s.dtype, s.dims) for s in map(program.shape_of, found.needless)}
    instruction = operation.instruction
    kept = [
        s for s in (*instruction.results, *instruction.operands) if (s.dtype, s.dims) not in gone
    ]
    bytes_ns = stored_bytes(*kept) / bytes_per_s * NS_PER_S
    flop = 0.0
    for row in rows:
        product = parse_instruction(program.texts.get(row, ""))
        if program.name_of(row) in PRODUCTS and product is not None:
            flop += product_flop(product) or 0.0
    return max(bytes_ns, work_ns), max(bytes_ns, flop_time_ns(signals, flop, at_peak=True) or 0.0)
