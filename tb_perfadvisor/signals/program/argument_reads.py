"""How a program reads its arguments, and how wide they are.

Arguments of few bits that a program widens before it multiplies them.

Widening a whole matrix, and scaling it, takes an operation for each element. A product that widens
its factor itself and scales its result reads the narrow numbers, and scales far fewer.

Operations that compute in 32 bits because the program widens 16-bit numbers for them.

Scores, normalizations, losses and sums are often widened for their precision. Nothing is gained by
advising 16-bit activations there: the program has them. Without any 16-bit source, or with large
arguments in 32 bits that raise the type of all that they meet, the width is most likely a default.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from math import prod
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.program.graph import (
    MOVES,
    PRODUCTS,
    SAME_ELEMENTS,
    FasterOperation,
    Running,
    mean_ns,
    origin,
    running_programs,
    runs_of,
    that_touch,
)
from tb_perfadvisor.signals.program.useful_work import is_normalized, mapped_from
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.memory_time import (
    achievable_bandwidth,
    memory_bandwidth,
    needed_ns,
    stored_bytes,
)
from tb_perfadvisor.signals.tpu.product_time import passes_of, product_time_ns
from tb_perfadvisor.signals.tpu.xla_operations import (
    XlaOperation,
    executions,
    operands_of,
    reader_count,
    readers_of,
    xla_operations,
)
from tb_perfadvisor.trace.hlo_text import Shape
from tb_perfadvisor.trace.program import Program
from tb_perfadvisor.trace.tables import Int32, Int64
from tb_perfadvisor.units import NS_PER_S

_PARTS = ("slice", "dynamic-slice", "gather", "dynamic-update-slice", "scatter")
"""These touch a part of an array."""


@memoized
def argument_reads_ns(signals: Signals, *, at_peak: bool) -> int:
    """What the memory takes for all arguments that are read whole; 0 if its bandwidth is unknown.

    With `at_peak`, the bandwidth is that of the data sheet, else what large transfers reach.
    """
    bytes_per_s = memory_bandwidth(signals, at_peak=at_peak)
    if bytes_per_s is None:
        return 0
    programs = running_programs(signals)
    size = sum(read_bytes(running.program) * runs_of(signals, running) for running in programs)
    return round(size / bytes_per_s * NS_PER_S)


def read_bytes(program: Program) -> int:
    """Bytes of the arguments that a program reads whole."""
    return sum(
        program.shape_of(row).padded_bytes
        for row in (program.argument >= 0).nonzero()[0].tolist()
        if any(program.name_of(user) not in _PARTS for user in program.users(row))
    )


_LEAST_ELEMENTS = 1 << 18
_NARROW_BITS = 8


class WeightReads(Struct, frozen=True):
    """What reading wide weights takes in the used window."""

    size_bytes: int
    read_ns: float
    saved_ns: float
    """What the memory needs for the bytes that they do not have in 8 bits."""
    operations: tuple[XlaOperation, ...]
    """Those that read them."""


def weight_reads(signals: Signals, most_rows: int) -> WeightReads | None:
    """The weights of more than 8 bits that products read for a few rows; None if there are none.

    The other factor of each product has at most `most_rows`.
    """
    bytes_per_s = achievable_bandwidth(signals)
    if bytes_per_s is None:
        return None
    size = saved = 0
    operations: dict[int, XlaOperation] = {}
    for running in running_programs(signals):
        runs, names = runs_of(signals, running), set[str]()
        for row in _weights(running, most_rows):
            shape = running.program.shape_of(row)
            size += runs * shape.padded_bytes
            saved += runs * (shape.padded_bytes - shape.elements * _NARROW_BITS // 8)
            names.add(running.program.kernel_of(row))
            names |= {running.program.kernel_of(user) for user in running.program.users(row)}
        operations |= {o.op: o for o in that_touch(signals, running, names)} if names else {}
    if not size:
        return None
    per_byte = NS_PER_S / bytes_per_s
    return WeightReads(size, size * per_byte, saved * per_byte, tuple(operations.values()))


def _weights(running: Running, most_rows: int) -> list[int]:
    """The arguments that are the larger factor of a product of few rows.

    Keys and values are none, although attention multiplies them by a few queries. Of two arguments,
    the first one is what a program multiplies by weights, such as tokens.
    """
    program, found = running.program, dict[int, None]()
    products = [row for row in program.rows_of(PRODUCTS) if not _is_attention(program, row)]
    for product in products:
        second = {origin(program, factor) for factor in program.operands(product, 1)}
        are_arguments = all(program.argument[row] >= 0 for row in second)
        for slot in (1,) if are_arguments else (0, 1):
            for factor in program.operands(product, slot):
                row = origin(program, factor)
                shape = program.shape_of(row)
                is_wide = shape.dtype in ("bf16", "f16", "f32")
                large = is_wide and shape.elements >= _LEAST_ELEMENTS and program.argument[row] >= 0
                if (
                    large
                    and not program.is_aliased[row]
                    and _rows(program, product, row) <= most_rows
                ):
                    found[row] = None
    return list(found)


def _is_attention(program: Program, product: int) -> bool:
    """Whether a product's result becomes the exponents of another's factor, or its factor is so."""
    if is_normalized(program, product):
        return True
    factors = (of for factor in program.operands(product) for of in mapped_from(program, factor))
    return any(program.name_of(of) == "exponential" for of in factors)


def _rows(program: Program, product: int, weights: int) -> float:
    """How often each weight is multiplied."""
    result, dims = program.shape_of(product).elements, program.shape_of(weights).dims
    columns = [dim for dim in dims if dim in program.shape_of(product).dims]
    return result / max(prod(columns), 1)


_LEAST_WIDENED = 1 << 20
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
        if program.shape_of(row).elements >= _LEAST_WIDENED and _is_of_narrow_argument(program, row)
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
        row = pending.pop()
        for user in program.users(row):
            name = program.name_of(user)
            if name in PRODUCTS and _is_weights(program, user, row):
                return True
            if user not in seen and name in (*SAME_ELEMENTS, *_SCALES):
                seen.add(user)
                pending.append(user)
    return False


def _is_weights(program: Program, product: int, factor: int) -> bool:
    """Whether a factor is not what a program multiplies by weights, the first of two arguments."""
    second = [origin(program, of) for of in program.operands(product, 1)]
    is_first = factor in program.operands(product, 0)
    return not (is_first and any(program.argument[row] >= 0 for row in second))


_WIDE, _NARROW = "f32", ("bf16", "f16")
_LEAST_BYTES = 1 << 20
"""Scales, rates and other small arguments raise the type of what they meet on purpose, too."""


@memoized
def widened_operations(signals: Signals) -> frozenset[int]:
    """Rows of the `HloTable` whose 32-bit arrays all come from 16-bit ones."""
    found = set[int]()
    for running in running_programs(signals):
        program = running.program
        is_wide = _has_dtype(program, (_WIDE,)) & _is_large(program)
        arguments = np.flatnonzero(is_wide & (program.argument >= 0)).tolist()
        narrow = np.flatnonzero(_has_dtype(program, _NARROW)).tolist()
        by_default = is_wide & (_widely_computed(program, arguments) | (program.argument >= 0))
        # What a kernel only spreads or moves was computed by another.
        moves = program.rows_of((*MOVES, "broadcast", "constant"))
        is_wide[moves] = False
        by_default |= is_wide & ~_widely_computed(program, narrow)
        defaults = {program.kernel_of(row) for row in np.flatnonzero(by_default).tolist()}
        defaults |= {program.kernel_of(user) for row in arguments for user in program.users(row)}
        known = {program.kernel_of(row) for row in range(len(program))}
        found |= {
            operation.op
            for name, operation in running.operations.items()
            if name in known and name not in defaults
        }
    return frozenset(found)


def _has_dtype(program: Program, dtypes: tuple[str, ...]) -> NDArray[np.bool_]:
    of_shape = np.array([shape.dtype in dtypes for shape in program.shapes], dtype=bool)
    return of_shape[program.shape] if len(of_shape) else np.zeros(len(program), dtype=bool)


def _is_large(program: Program) -> NDArray[np.bool_]:
    of_shape = np.array([s.padded_bytes >= _LEAST_BYTES for s in program.shapes], dtype=bool)
    return of_shape[program.shape] if len(of_shape) else np.zeros(len(program), dtype=bool)


def _widely_computed(program: Program, sources: list[int]) -> NDArray[np.bool_]:
    """What is computed from some values in 32 bits all the way; shape (n,)."""
    is_wide = _has_dtype(program, (_WIDE,))
    reached = np.zeros(len(program), dtype=bool)
    pending = deque(sources)
    while pending:
        for user in program.users(pending.popleft()):
            if is_wide[user] and not reached[user]:
                reached[user] = True
                pending.append(user)
    return reached


_BOUND = 1.5
"""An operation waits for its bytes if it takes at most this multiple of the time they need."""
_MOVES = ("copy-start", "copy-done")


class WideArrays(NamedTuple):
    """Executions that wait for 32-bit arrays; columns of shape (n,)."""

    rows: Int32
    half_ns: Int64
    """What each takes if arrays that operations exchange have half of their bytes."""
    best_ns: Int64
    """The same if all have, and those that fit into memory on the chip then are not moved more than
    once: arguments are read once, results are written once, and others stay on the chip."""


@memoized
def wide_arrays(signals: Signals) -> WideArrays:
    """Executions of operations that wait for 32-bit arrays in the device's memory."""
    bytes_per_s = memory_bandwidth(signals, at_peak=False)
    operations = [] if bytes_per_s is None else list(xla_operations(signals))
    size = len(signals.trace.hlo.name)
    exchanged_bytes, gone_bytes, product_ns = np.zeros((3, size))
    on_chip = max(
        (shape.padded_bytes for o in operations for shape in _arrays(o) if shape.memory_space == 1),
        default=0,
    )
    found, deliberate = [], widened_operations(signals)
    for operation in operations:
        product = operation.product
        is_in_passes = product is not None and passes_of(product) > 1
        wide = [shape for shape in _arrays(operation) if _is_wide(shape)]
        if operation.op in deliberate or not wide or is_in_passes or operation.opcode in _MOVES:
            continue
        found.append(operation)
        for shape, times in _moved(signals, operation):
            half = stored_bytes(shape) / 2
            kept = times if half <= on_chip else 1.0
            exchanged_bytes[operation.op] += half if times == 0 else 0.0
            gone_bytes[operation.op] += 2 * half - kept * half
        product_ns[operation.op] = product_time_ns(signals, operation, at_peak=True) or 0.0
    needed = np.zeros(size)
    for operation in found:
        needed[operation.op] = np.nan_to_num(needed_ns(signals, operation))
    rows = executions(signals, found)
    op, now_ns = signals.trace.operations(rows), signals.trace.events.duration_ns[rows]
    waits = (needed[op] > 0) & (now_ns <= _BOUND * needed[op])
    rows, op, now_ns = rows[waits], op[waits], now_ns[waits]
    per_byte = NS_PER_S / (bytes_per_s or 1.0)
    columns = []
    for saved_bytes in (exchanged_bytes, gone_bytes):
        # An operation that slices an array reads less than all of it.
        share = np.minimum(saved_bytes[op] * per_byte / np.maximum(needed[op], 1), 1.0)
        then_ns = np.maximum(now_ns * (1 - share), product_ns[op])
        columns.append(np.minimum(then_ns, now_ns).astype(np.int64))
    return WideArrays(rows, *columns)


def _arrays(operation: XlaOperation) -> tuple[Shape, ...]:
    return (*operation.instruction.results, *operation.instruction.operands)


def _is_wide(shape: Shape) -> bool:
    return shape.dtype == "f32" and len(shape.dims) > 1 and shape.memory_space == 0


def _moved(signals: Signals, operation: XlaOperation) -> Iterator[tuple[Shape, float]]:
    """32-bit arrays, and how often each has to be moved for this operation, at best.

    Not at all if another operation computes it, or reads it; one in k times if it is an argument
    that k operations read.
    """
    written = {o.name for o in operands_of(signals, operation)}
    instruction = operation.instruction
    named = zip(instruction.operand_names, instruction.operands, strict=False)
    for name, shape in named:
        if _is_wide(shape):
            times = 0.0 if name in written else 1 / max(reader_count(signals, operation, name), 1)
            yield shape, times
    is_read = bool(readers_of(signals, [operation]))
    for shape in instruction.results:
        if _is_wide(shape):
            yield shape, 0.0 if is_read else 1.0
