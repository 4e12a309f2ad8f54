"""Executions of XLA's operations: loops, readers, weights, arguments.

Loops of XLA programs on a TPU: how often each runs its body.

A `while` encloses the operations of its body, once per trip. An operation that the body runs once
gives the number of trips.

Arguments of an XLA program that are copied as they are.

XLA copies an argument, in the layout that it has, only if the program overwrites it or returns it:
the caller may still use it, unless it donates it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.device.device_work import work_rows
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace.hlo_text import Instruction, Shape, parse_instruction
from tb_perfadvisor.trace.integer_groups import distinct, is_in, unique_inverse
from tb_perfadvisor.trace.tables import Int32, Int64

_PRODUCTS = ("dot", "convolution")


class XlaOperation(Struct, frozen=True):
    """A distinct operation that runs in the used window."""

    op: int
    """Row of the `HloTable`."""
    name: str
    category: str
    """XProf's category: loop fusion, data formatting, …; the opcode if the profile has none."""
    path: str
    """The framework's name for it; empty if unknown."""
    instruction: Instruction
    inside: frozenset[str] = frozenset()
    """Opcodes inside a fusion; empty for other operations, and if the profile does not tell."""
    inside_paths: tuple[str, ...] = ()
    """The framework's names for what is inside a fusion."""
    inside_elements: int = 0
    """Elements of the largest array that is computed inside a fusion; 0 if unknown."""
    product: Instruction | None = None
    """The matrix product or convolution that it is or contains; None if it is none, or unknown."""
    is_transposed: bool = False
    """Whether it is a copy of an argument or result that the program is seen to transpose."""
    is_known_before_loop: bool = False
    """Whether it is seen to run in a loop although it depends on no other trip."""

    @property
    def opcode(self) -> str:
        """Its HLO opcode."""
        return self.instruction.opcode

    @property
    def paths(self) -> tuple[str, ...]:
        """The framework's names for it and for what is inside."""
        return (self.path, *self.inside_paths)


@memoized
def has_tiled_layouts(signals: Signals) -> bool:
    """Whether the text of any XLA operation has a tiled layout."""
    trace = signals.trace
    return any(":T(" in trace.text(int(index)) for index in distinct(trace.hlo.text))


@memoized
def xla_operations(signals: Signals) -> tuple[XlaOperation, ...]:
    """Operations whose text was recorded, costliest first; empty unless on a TPU or the CPU."""
    if not (signals.device.is_host_only or has_tiled_layouts(signals)):
        return ()
    text, hlo = signals.trace.text, signals.trace.hlo
    operations = []
    for op in signals.hlo.op.tolist():
        instruction = parse_instruction(text(int(hlo.text[op])))
        if instruction is None:
            continue
        name, category, path, opcodes, paths, product = (
            text(int(column[op]))
            for column in (
                *(hlo.name, hlo.category, hlo.path),
                *(hlo.inside_opcodes, hlo.inside_paths, hlo.product),
            )
        )
        operations.append(
            XlaOperation(
                op,
                name,
                category or instruction.opcode,
                path,
                instruction,
                inside=frozenset(opcodes.split()),
                inside_paths=tuple(paths.split("\n")) if paths else (),
                inside_elements=max(int(hlo.inside_elements[op]), 0),
                product=_product(instruction, product),
                is_transposed=bool(hlo.transposed[op] == 1),
                is_known_before_loop=bool(hlo.before_loop[op] == 1),
            )
        )
    return tuple(operations)


def _product(instruction: Instruction, inside: str) -> Instruction | None:
    return instruction if instruction.opcode in _PRODUCTS else parse_instruction(inside)


def executions(signals: Signals, operations: Iterable[XlaOperation]) -> Int32:
    """Rows of the operations' executions in the used window, in order of start."""
    hlo = signals.trace.hlo_events
    is_wanted = np.zeros(len(signals.trace.hlo.name), dtype=bool)
    is_wanted[[operation.op for operation in operations]] = True
    rows = hlo.row[is_wanted[hlo.op]]
    used_rows: Int32 = rows[is_in(rows, work_rows(signals))]
    return used_rows


class Loops(Struct, frozen=True):
    """Executions of innermost loops that run operations in the used window; shape (n,) each."""

    row: Int32
    """The event of the loop."""
    trips: Int64
    """The most executions of one of its operations."""


@memoized
def loops(signals: Signals) -> Loops:
    """The loops whose bodies contain no other loop; none unless on a TPU."""
    trace = signals.trace
    if not has_tiled_layouts(signals):
        return Loops(np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int64))
    table, events = trace.hlo_events, trace.events
    whiles = table.row[is_in(table.op, _while_ops(signals))]
    body = work_rows(signals)
    parent = events.parent[body]
    inside = (parent >= 0) & is_in(parent, whiles)
    body, parent = body[inside], parent[inside]
    # A loop that encloses another one runs its trips at the pace of that one.
    parent_of_loops = events.parent[whiles]
    keep = ~is_in(parent, parent_of_loops[parent_of_loops >= 0])
    body, parent = body[keep], parent[keep]
    found, of_loop = unique_inverse(parent)
    ops, of_op = unique_inverse(trace.operations(body))
    keys, count = np.unique(of_loop.astype(np.int64) * max(len(ops), 1) + of_op, return_counts=True)
    trips = np.zeros(len(found), dtype=np.int64)
    np.maximum.at(trips, keys // max(len(ops), 1), count)
    return Loops(found.astype(np.int32), trips)


def _while_ops(signals: Signals) -> list[int]:
    hlo, text = signals.trace.hlo, signals.trace.text
    parsed = (parse_instruction(text(int(index))) for index in hlo.text)
    return [op for op, found in enumerate(parsed) if found is not None and found.opcode == "while"]


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


# Never executed, so no profile shows them: other arrays in another guise.
_RENAMED_ARGUMENTS = ("bitcast", "get-tuple-element", "constant", "param", "tuple")


@memoized
def copied_arguments(signals: Signals) -> Int32:
    """Executions of such copies in the used window, in order of start."""
    operations = xla_operations(signals)
    module = signals.trace.hlo.module
    computed = {(int(module[o.op]), o.name) for o in operations}
    copies = [
        o
        for o in operations
        if _keeps_layout(o) and (int(module[o.op]), _source(o)) not in computed
    ]
    return executions(signals, copies) if copies else np.empty(0, dtype=np.int32)


@memoized
def passed_copies(signals: Signals) -> Int32:
    """Executions of XLA's own copies of what a trip of a loop passes to the next, by start.

    The program asks for none of them, so that nothing in it avoids them.
    """
    copies = [
        o
        for o in xla_operations(signals)
        if o.opcode == "copy" and not o.path and _source(o).startswith("get-tuple-element")
    ]
    if not copies:
        return np.empty(0, dtype=np.int32)
    rows = executions(signals, copies)
    return rows[is_in(signals.trace.events.parent[rows], loops(signals).row)]


def _keeps_layout(operation: XlaOperation) -> bool:
    instruction = operation.instruction
    return (
        operation.opcode == "copy"
        and instruction.results == instruction.operands
        and len(instruction.operand_names) == 1
        and not _source(operation).startswith(_RENAMED_ARGUMENTS)
    )


def _source(operation: XlaOperation) -> str:
    return next(iter(operation.instruction.operand_names), "")
