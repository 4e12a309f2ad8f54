"""XLA operations on a TPU that wait for the bytes of 32-bit arrays, which are half in 16 bits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.program.deliberate_width import widened_operations
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.memory_time import memory_bandwidth, needed_ns, stored_bytes
from tb_perfadvisor.signals.tpu.product_time import passes_of, product_time_ns
from tb_perfadvisor.signals.tpu.readers import operands_of, reader_count, readers_of
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation, executions, xla_operations
from tb_perfadvisor.trace.hlo_text import Shape
from tb_perfadvisor.trace.tables import Int32, Int64
from tb_perfadvisor.units import NS_PER_S

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
