"""Which XLA operations read what others compute, and how much of their time goes into that."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation, xla_operations
from tb_perfadvisor.trace.hlo_text import Shape

_RENAMED = "bitcast"
"""Gives an array another shape without moving it. It is never executed, so no profile shows it."""
_LARGE = 1 << 20
"""Elements. Among smaller arrays, equal sizes are common."""


@memoized
def _readers_by_operand(
    signals: Signals,
) -> dict[tuple[int, str], list[tuple[XlaOperation, Shape]]]:
    """The operations that read each array, by module and name of the operand."""
    readers = defaultdict(list)
    for operation in xla_operations(signals):
        names, shapes = operation.instruction.operand_names, operation.instruction.operands
        if len(names) == len(shapes):
            for name, shape in zip(names, shapes, strict=True):
                readers[_module(signals, operation), name].append((operation, shape))
    return dict(readers)


@memoized
def _by_name(signals: Signals) -> dict[tuple[int, str], XlaOperation]:
    """Each operation by its module and name."""
    return {(_module(signals, o), o.name): o for o in xla_operations(signals)}


def operands_of(signals: Signals, operation: XlaOperation) -> list[XlaOperation]:
    """The operations whose results an operation reads."""
    module, by_name = _module(signals, operation), _by_name(signals)
    names = dict.fromkeys(operation.instruction.operand_names)
    return [by_name[module, name] for name in names if (module, name) in by_name]


def reader_count(signals: Signals, operation: XlaOperation, name: str) -> int:
    """How many operations read an operand of an operation, itself included."""
    return len(_readers_by_operand(signals).get((_module(signals, operation), name), ()))


def shares_with(signals: Signals, operations: Sequence[XlaOperation]) -> dict[XlaOperation, float]:
    """Operations that exchange arrays with others, each with the share of these in its bytes.

    They write what the others read, or read what these write.
    """
    given = {operation.op for operation in operations}
    shared_bytes: dict[int, int] = defaultdict(int)
    found: dict[int, XlaOperation] = {}
    for operation in operations:
        for writer in operands_of(signals, operation):
            found[writer.op] = writer
            shared_bytes[writer.op] += _size_bytes(*writer.instruction.results)
    for reader, shape in readers_of(signals, operations):
        found[reader.op] = reader
        shared_bytes[reader.op] += _size_bytes(shape)
    shares = {}
    for op, other in found.items():
        instruction = other.instruction
        all_bytes = _size_bytes(*instruction.results, *instruction.operands)
        if op not in given and all_bytes:
            shares[other] = min(shared_bytes[op] / all_bytes, 1.0)
    return shares


def _size_bytes(*shapes: Shape) -> int:
    """Bytes in any memory, in whole tiles."""
    return sum(shape.padded_bytes for shape in shapes)


def readers_of(
    signals: Signals, operations: Iterable[XlaOperation]
) -> list[tuple[XlaOperation, Shape]]:
    """Operations that read the results of others, each with the array as it reads it.

    A bitcast between the two is followed by the size of its array: of large arrays that a program
    calls bitcasts, one with as many elements of the same type is taken for the result.
    """
    by_operand, found = _readers_by_operand(signals), []
    for operation in operations:
        module, results = _module(signals, operation), operation.instruction.results
        found += by_operand.get((module, operation.name), [])
        sizes = {(shape.dtype, shape.elements) for shape in results if shape.elements >= _LARGE}
        for (of_module, name), readers in by_operand.items():
            if of_module == module and sizes and name.startswith(_RENAMED):
                found += [
                    (reader, shape)
                    for reader, shape in readers
                    if (shape.dtype, shape.elements) in sizes
                ]
    return found


def _module(signals: Signals, operation: XlaOperation) -> int:
    return int(signals.trace.hlo.module[operation.op])
