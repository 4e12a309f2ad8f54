"""Arrays that an XLA program offloads to host memory, and how long the device waits for them."""

from __future__ import annotations

import numpy as np

from tb_perfadvisor.signals.core.causes import Cause
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation, executions, xla_operations
from tb_perfadvisor.trace.hlo_text import Shape
from tb_perfadvisor.trace.intervals import Intervals, intersect, union
from tb_perfadvisor.trace.tables import Int32

_COPIES = ("copy", "copy-start", "copy-done")
_SLICES = tuple(
    f"{slice_}{half}"
    for slice_ in ("slice", "dynamic-slice", "dynamic-update-slice")
    for half in ("", "-start", "-done")
)


def offload_copies(signals: Signals) -> tuple[XlaOperation, ...]:
    """Copies between device memory and arrays that the program keeps in host memory."""
    return tuple(
        operation
        for operation in xla_operations(signals)
        if operation.opcode in (*_COPIES, *_SLICES)
        and len({shape.is_on_host for shape in copied_arrays(operation)}) > 1
    )


def copied_arrays(operation: XlaOperation) -> tuple[Shape, ...]:
    """The arrays that a copy writes and reads, without the flags in its tuple.

    Of a slice, that is the slice on the device, and the array on the host that it belongs to.
    """
    arrays = (*operation.instruction.results, *operation.instruction.operands)
    return tuple(shape for shape in arrays if shape.dims)


def is_to_host(operation: XlaOperation) -> bool:
    """Whether a copy writes to host memory."""
    if operation.opcode in _SLICES:
        return "update" in operation.opcode
    return copied_arrays(operation)[0].is_on_host


def copied_bytes(operation: XlaOperation) -> int:
    """Bytes that one execution copies."""
    arrays = copied_arrays(operation)
    if operation.opcode not in _SLICES:
        return arrays[0].padded_bytes
    return min(shape.padded_bytes for shape in arrays)


def host_bytes(signals: Signals) -> int:
    """Bytes of the arrays in host memory, at most: each copy to the host has one of its own.

    Where the program only reads such arrays, each copy to the device has.
    """
    copies = [each for each in offload_copies(signals) if not each.opcode.endswith("-done")]
    to_host = [copy for copy in copies if is_to_host(copy)]
    return sum(
        max(shape.padded_bytes for shape in copied_arrays(copy) if shape.is_on_host)
        for copy in to_host or copies
    )


@memoized
def offload_rows(signals: Signals) -> Int32:
    """Executions of these copies in the used window."""
    operations = offload_copies(signals)
    return executions(signals, operations) if operations else np.empty(0, dtype=np.int32)


@memoized
def offload_waits(signals: Signals) -> Intervals:
    """Time of the used window in which the device only waits for these copies."""
    events, rows = signals.trace.events, offload_rows(signals)
    waits = union(events.start_ns[rows], events.end_ns[rows])
    return intersect(signals.attribution.intervals[Cause.COPIES], waits)
