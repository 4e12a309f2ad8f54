"""How long the memory of a TPU needs for the bytes of each XLA operation.

The bytes are those that the profile states. If it states none, they are those of the arrays that
the operation reads and writes, in whole tiles, without arrays on the chip or on the host. So are
those of operations that move a part of an array, of which profiles count only the reads.
"""

from __future__ import annotations

import numpy as np

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation, xla_operations
from tb_perfadvisor.trace.hlo_text import Instruction, Shape
from tb_perfadvisor.trace.tables import Float64
from tb_perfadvisor.units import NS_PER_S

_PARTIAL = ("slice", "dynamic-slice", "dynamic-update-slice", "gather", "scatter")


@memoized
def memory_times(signals: Signals) -> Float64:
    """Time of one execution of each operation of the `HloTable` in ns; NaN if unknown."""
    trace = signals.trace
    time_ns = np.full(len(trace.hlo.name), np.nan)
    bytes_per_s = achievable_bandwidth(signals)
    if bytes_per_s is None:
        return time_ns
    for operation in xla_operations(signals):
        stated = float(trace.hlo.traffic_bytes[operation.op])
        is_partial = operation.opcode in _PARTIAL or not stated > 0
        size_bytes = moved_bytes(operation.instruction) if is_partial else stated
        time_ns[operation.op] = size_bytes / bytes_per_s * NS_PER_S
    return time_ns


def achievable_bandwidth(signals: Signals) -> float | None:
    """What large transfers reach of the bandwidth of the device's memory; None if unknown."""
    return memory_bandwidth(signals, at_peak=False)


def memory_bandwidth(signals: Signals, *, at_peak: bool) -> float | None:
    """Bytes per second of the device's memory; None if unknown.

    With `at_peak`, it is that of the data sheet, else what large transfers reach.
    """
    facts = signals.device_facts
    peaks = facts.peaks if facts is not None else None
    if peaks is None or peaks.memory_bandwidth_bytes_per_s is None:
        return None
    return peaks.memory_bandwidth_bytes_per_s * (1.0 if at_peak else peaks.achievable_bandwidth)


def needed_ns(signals: Signals, operation: XlaOperation, *, at_peak: bool = False) -> float:
    """What the bytes of one execution need; NaN if unknown.

    With `at_peak`, the bandwidth is that of the data sheet, else what large transfers reach.
    """
    time_ns = float(memory_times(signals)[operation.op])
    facts = signals.device_facts
    if not at_peak or facts is None or facts.peaks is None:
        return time_ns
    return time_ns * facts.peaks.achievable_bandwidth


def moved_bytes(instruction: Instruction) -> int:
    """Bytes that an operation moves to and from the device's memory, in whole tiles."""
    results, operands = instruction.results, instruction.operands
    if instruction.opcode in ("slice", "dynamic-slice", "gather"):
        return 2 * stored_bytes(*results)
    if instruction.opcode == "dynamic-update-slice":
        return 2 * stored_bytes(*operands[1:2])
    if instruction.opcode == "scatter":
        # The old values are read, the updates are read, and the sums are written.
        return 3 * stored_bytes(*operands[2:3])
    if instruction.opcode.endswith(("-start", "-done")):
        return 2 * stored_bytes(*results[:1])
    return stored_bytes(*results, *operands)


def stored_bytes(*shapes: Shape) -> int:
    """Bytes of the arrays that are in the device's memory."""
    return sum(shape.padded_bytes for shape in shapes if not shape.memory_space)
