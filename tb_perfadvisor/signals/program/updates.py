"""Arrays that a program updates, copies and writes.

What a step of XLA programs occupies at most: all that it reads and writes at all.

If that fits into the device's memory, then so does everything that a step could keep. It needs no
recorded memory. Short steps show it: the memory's bandwidth limits what they can write.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.program.graph import (
    SAME_ELEMENTS,
    FasterOperation,
    Running,
    count_of,
    in_proportion,
    mean_ns,
    origin,
    running_programs,
    runs_of,
    that_touch,
)
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.memory_time import achievable_bandwidth, stored_bytes
from tb_perfadvisor.signals.tpu.xla_operations import executions
from tb_perfadvisor.trace.hlo_text import Shape
from tb_perfadvisor.trace.program import Program
from tb_perfadvisor.trace.tables import Int32
from tb_perfadvisor.units import NS_PER_S

_IN_PLACE = ("dynamic-update-slice", "scatter")
_LEAST_BYTES = 1 << 20
"""Smaller arrays stay on the chip, and take about a microsecond."""
_MOST_STEPS = 64
_JOINING = frozenset(
    {
        *(*SAME_ELEMENTS, "broadcast", "concatenate", "constant", "maximum", "or", "pad", "slice"),
        *("copy-done", "slice-start", "slice-done"),
    }
)


class Update(Struct, frozen=True):
    """An argument that a program returns with some elements changed."""

    running: Running
    argument: int
    """Its row in the program."""
    rows: tuple[int, ...]
    """The values on the way from the argument to the result."""
    how: str
    """`in-place`, `where`, `concatenate`, `gather` or `dense`."""

    @property
    def shape(self) -> Shape:
        """Of the array."""
        return self.running.program.shape_of(self.argument)

    @property
    def is_aliased(self) -> bool:
        """Whether the result takes the memory of the argument."""
        return bool(self.running.program.is_aliased[self.argument])


@memoized
def updates(signals: Signals) -> tuple[Update, ...]:
    """The large arguments that programs return with some elements changed."""
    return tuple(
        update
        for running in running_programs(signals)
        for row in _results(running.program)
        if (update := _update(running, row)) is not None
    )


def _results(program: Program) -> Iterator[int]:
    for row in program.is_result.nonzero()[0].tolist():
        if program.shape_of(row).padded_bytes >= _LEAST_BYTES:
            yield row


def _update(running: Running, result: int) -> Update | None:
    """How a result comes from an argument of its shape; None if it does not."""
    program, row, rows, how = running.program, result, [result], ""
    shape = program.shape_of(result)
    for _ in range(_MOST_STEPS):
        name = program.name_of(row)
        if name == "parameter":
            argument = program.shape_of(row)
            same = (argument.dims, argument.dtype) == (shape.dims, shape.dtype)
            return Update(running, row, tuple(rows), how) if how and same else None
        slot = 0
        if name in _IN_PLACE:
            how = how or "in-place"
        elif name == "select":
            found = _chosen_by_place(program, row)
            if found is None:
                return None
            slot, how = found, "where"
        elif name == "concatenate":
            how = "concatenate"
        elif name in ("maximum", "or", "add") and (found := _joined(program, row)) is not None:
            slot, how = found, "concatenate"
        elif name == "pad" and how == "concatenate":
            pass
        elif name == "gather":
            how = "gather"
        elif name in ("add", "subtract"):
            gradients = [_dense_gradient(program, row, term) for term in (0, 1)]
            if gradients.count([]) != 1:
                return None
            slot, how = gradients.index([]), "dense"
            rows += gradients[1 - slot]
        elif name in ("slice", "slice-start") and how == "concatenate":
            pass
        elif name not in SAME_ELEMENTS:
            return None
        operands = program.operands(row, slot)
        if not operands:
            return None
        row = operands[0]
        rows.append(row)
    return None


def _joined(program: Program, row: int) -> int | None:
    """The slot with more of the elements, if two padded arrays are joined; else None.

    XLA joins arrays in a fusion by padding both and taking the larger elements.
    """
    parts = [[origin(program, of) for of in program.operands(row, slot)] for slot in (0, 1)]
    if any([program.name_of(of) for of in part] != ["pad"] for part in parts):
        return None
    inner = [program.operands(part[0], 0) for part in parts]
    sizes = [sum(program.shape_of(of).elements for of in part) for part in inner]
    return sizes.index(max(sizes))


def _chosen_by_place(program: Program, row: int) -> int | None:
    """The slot that a choice by position keeps; None for other choices.

    It compares positions with a single number, so that it changes one slice.
    """
    for condition in program.operands(row, 0):
        place = origin(program, condition, (*SAME_ELEMENTS, "broadcast"))
        if program.name_of(place) != "compare" or "direction=EQ" not in program.texts.get(
            place, ""
        ):
            return None
        sides = [
            origin(program, of, (*SAME_ELEMENTS, "broadcast"))
            for slot in (0, 1)
            for of in program.operands(place, slot)
        ]
        names = [program.name_of(side) for side in sides]
        others = [s for s, n in zip(sides, names, strict=True) if n != "iota"]
        if names.count("iota") == 1 and len(others) == 1 and not program.shape_of(others[0]).dims:
            return 2
    return None


def _dense_gradient(program: Program, row: int, slot: int) -> list[int]:
    """What computes a term that adds rows into an array of zeros; empty for other terms."""
    for of in program.operands(row, slot):
        place, rows = of, list[int]()
        for _ in range(_MOST_STEPS):
            rows.append(place)
            name = program.name_of(place)
            if name == "scatter":
                bases = program.operands(place, 0)
                zeros = [origin(program, base, (*SAME_ELEMENTS, "broadcast")) for base in bases]
                is_of_zeros = zeros and all(program.name_of(z) == "constant" for z in zeros)
                return [*rows, *bases] if is_of_zeros else []
            if name not in (*SAME_ELEMENTS, "multiply", "negate"):
                break
            places = [
                operand
                for operand in program.operands(place)
                if program.name_of(operand) not in ("constant", "broadcast")
            ]
            if len(places) != 1:
                break
            place = places[0]
    return []


def copied_updates(signals: Signals) -> list[FasterOperation]:
    """What donating would save: arrays that are updated in place, but in a new copy.

    The copy reads and writes the array once in each call, also where a loop updates it. An
    operation that does more than to copy can share the reading.
    """
    found = undonated(signals)
    copies = _priced(signals, found, (0.8, 1.3, 2.0), is_once=True)
    return [*copies, *_without_copies(signals, found)]


def rewritten_arrays(signals: Signals) -> list[FasterOperation]:
    """What updating in place would save: arrays that are written whole, to change a few elements.

    Each is written once; it is also read, which other operations may need. A gradient for all rows
    of a table is written and read, too.
    """
    chosen = [u for u in updates(signals) if u.how == "where"]
    joined = [u for u in updates(signals) if u.how == "concatenate"]
    dense = [u for u in updates(signals) if u.how == "dense"]
    moved = [u for u in updates(signals) if u.how == "gather"]
    return [
        *_priced(signals, chosen, (0.5, 1.0, 2.0)),
        # The part that stays is cut out first, which also reads and writes it.
        *_priced(signals, joined, (0.5, 1.0, 4.0)),
        *_without_moves(signals, joined),
        *_without_copies(signals, [*chosen, *joined]),
        *_priced(signals, dense, (2.0, 3.5, 4.0)),
        *_priced(signals, moved, _passes_of_moves(moved)),
    ]


def _without_moves(signals: Signals, found: list[Update]) -> list[FasterOperation]:
    """What only cuts a joined array and joins it again, and what waits for its copies."""
    faster: dict[int, FasterOperation] = {}
    for update in found:
        program = update.running.program
        names = {program.kernel_of(row) for row in update.rows}
        does = {name: set[str]() for name in names}
        for row in range(len(program)):
            if program.kernel_of(row) in does:
                does[program.kernel_of(row)].add(program.name_of(row))
        moving = {name for name, opcodes in does.items() if opcodes <= _JOINING}
        for operation in that_touch(signals, update.running, names):
            if operation.name in moving or operation.opcode in ("copy-start", "copy-done"):
                now = mean_ns(signals, operation)
                faster[operation.op] = FasterOperation(operation, 0.1 * now, 0.0, 0.5 * now)
    return list(faster.values())


def _without_copies(signals: Signals, found: list[Update]) -> list[FasterOperation]:
    """Copies to another layout and back, on the way from an argument to its result.

    An update in place needs none of them.
    """
    faster: dict[int, FasterOperation] = {}
    for update in found:
        for operation in update.running.of(update.rows):
            if operation.opcode in ("copy", "transpose"):
                now = mean_ns(signals, operation)
                faster[operation.op] = FasterOperation(operation, 0.1 * now, 0.0, 0.5 * now)
    return list(faster.values())


def _passes_of_moves(moved: list[Update]) -> tuple[float, float, float]:
    """Passes over arrays that are moved into another order, perhaps by way of another layout.

    Each operation on the way reads and writes the array. A part of it may have to move.
    """
    kernels = sum(len({u.running.program.kernel_of(row) for row in u.rows[:-1]}) for u in moved)
    each = 2.0 * kernels / max(len(moved), 1)
    return 0.3 * each, 0.65 * each, each


def _priced(
    signals: Signals,
    found: list[Update],
    passes: tuple[float, float, float],
    *,
    is_once: bool = False,
) -> list[FasterOperation]:
    """Operations on arrays, without some passes over their bytes: in each trip, or once a call."""
    bytes_per_s = achievable_bandwidth(signals)
    if bytes_per_s is None:
        return []
    faster: dict[int, FasterOperation] = {}
    for running in dict.fromkeys(id(update.running) for update in found):
        of_program = [update for update in found if id(update.running) == running]
        of, program = of_program[0].running, of_program[0].running.program
        names = {program.kernel_of(row) for update in of_program for row in update.rows}
        operations = that_touch(signals, of, names)
        runs = max((count_of(signals, o) for o in operations), default=0)
        if is_once:
            runs = min(runs, runs_of(signals, of))
        size = sum(update.shape.padded_bytes for update in of_program)
        once_ns = runs * size / bytes_per_s * NS_PER_S
        low, expected, high = (part * once_ns for part in passes)
        for one in in_proportion(signals, operations, (low, expected, high)):
            faster[one.operation.op] = one
    return list(faster.values())


def undonated(signals: Signals) -> list[Update]:
    """Large arguments that are updated in place, but in a new copy."""
    return [u for u in updates(signals) if u.how == "in-place" and not u.is_aliased]


def undonated_copies(signals: Signals) -> Int32:
    """Executions of the copies that donating makes needless, in order of start."""
    copies = [
        operation
        for update in undonated(signals)
        for operation in update.running.of(update.rows)
        if operation.opcode == "copy"
    ]
    return executions(signals, copies) if copies else np.empty(0, dtype=np.int32)


@memoized
def most_occupied_bytes(signals: Signals) -> int | None:
    """Bytes of the arguments and of all results of a step, as if nothing were freed.

    None if no program is known.
    """
    size, steps = 0.0, max(signals.steps.count, 1)
    for running in running_programs(signals):
        program = running.program
        arguments = (program.argument >= 0).nonzero()[0].tolist()
        size += stored_bytes(*map(program.shape_of, arguments))
        for operation in running.operations.values():
            written = stored_bytes(*operation.instruction.results)
            size += written * count_of(signals, operation) / steps
    return round(size) or None
