"""Walks through the values of XLA programs, and finds the operations that compute them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.readers import readers_of
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation, xla_operations
from tb_perfadvisor.trace.program import Program

PRODUCTS = ("dot", "convolution")
MOVES = ("bitcast", "copy", "copy-start", "reshape", "transpose", "reduce-precision")
"""Their results have the elements of their operand."""
SAME_ELEMENTS = (*MOVES, "convert")
_MOST_STEPS = 64


class FasterOperation(NamedTuple):
    """An operation that would be faster, with what one execution takes then, in ns."""

    operation: XlaOperation
    expected_ns: float
    best_ns: float
    worst_ns: float


class Running(NamedTuple):
    """A program that runs in the used window, and its operations by name."""

    program: Program
    operations: dict[str, XlaOperation]

    def of(self, rows: Iterable[int]) -> list[XlaOperation]:
        """The operations that compute some values, each once."""
        names = dict.fromkeys(self.program.kernel_of(row) for row in rows)
        return [self.operations[name] for name in names if name in self.operations]


@memoized
def running_programs(signals: Signals) -> tuple[Running, ...]:
    """The programs of the used window; none unless on a TPU or the CPU."""
    by_module: dict[str, dict[str, XlaOperation]] = {}
    for operation in xla_operations(signals):
        module = signals.trace.text(int(signals.trace.hlo.module[operation.op]))
        by_module.setdefault(module, {})[operation.name] = operation
    return tuple(
        Running(program, by_module[program.module])
        for program in signals.trace.programs
        if program.module in by_module
    )


def mean_ns(signals: Signals, operation: XlaOperation) -> float:
    """How long one execution of an operation takes in the used window."""
    times = _times(signals)
    total_ns, count = times.get(operation.op, (0, 1))
    return total_ns / max(count, 1)


def total_ns(signals: Signals, operations: Iterable[XlaOperation]) -> int:
    """How long operations take in the used window."""
    times = _times(signals)
    return sum(times.get(operation.op, (0, 0))[0] for operation in operations)


def count_of(signals: Signals, operation: XlaOperation) -> int:
    """How often an operation runs in the used window."""
    return _times(signals).get(operation.op, (0, 0))[1]


@memoized
def _times(signals: Signals) -> dict[int, tuple[int, int]]:
    hlo = signals.hlo
    times = zip(hlo.total_ns.tolist(), hlo.count.tolist(), strict=True)
    return dict(zip(hlo.op.tolist(), times, strict=True))


def origin(program: Program, row: int, through: Sequence[str] = SAME_ELEMENTS) -> int:
    """What computes the elements of a value that is only moved or converted."""
    for _ in range(_MOST_STEPS):
        operands = program.operands(row, 0) if program.name_of(row) in through else []
        if len(operands) != 1:
            return row
        row = operands[0]
    return row


def readers(program: Program, row: int, through: Sequence[str] = SAME_ELEMENTS) -> Iterator[int]:
    """The values that are computed from the elements of a value, however these are moved."""
    pending, seen = [row], {row}
    while pending:
        for user in program.users(pending.pop()):
            if user in seen:
                continue
            seen.add(user)
            if program.name_of(user) in through:
                pending.append(user)
            else:
                yield user


def that_touch(signals: Signals, running: Running, names: Iterable[str]) -> list[XlaOperation]:
    """The operations that compute or read arrays by name, and those that wait for these."""
    wanted = set(names)
    touching = [
        operation
        for operation in running.operations.values()
        if operation.name in wanted or wanted & set(operation.instruction.operand_names)
    ]
    starts = [operation for operation in touching if operation.opcode.endswith("-start")]
    waiting = [reader for reader, _ in readers_of(signals, starts)]
    return list({operation.op: operation for operation in (*touching, *waiting)}.values())


def in_proportion(
    signals: Signals,
    operations: Sequence[XlaOperation],
    saved_ns: tuple[float, float, float],
) -> list[FasterOperation]:
    """Operations that together save some time, each in proportion to its own.

    Args:
        signals: The worker's facts.
        operations: They share the time.
        saved_ns: What all executions save at worst, as expected, and at best.
    """
    whole_ns = total_ns(signals, operations)
    if not whole_ns:
        return []
    worst, expected, best = (max(1 - min(part / whole_ns, 1.0), 0.0) for part in saved_ns)
    return [
        FasterOperation(o, now * expected, now * best, now * worst)
        for o in operations
        for now in (mean_ns(signals, o),)
    ]
