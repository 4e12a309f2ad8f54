"""Transfers between chips, slices and hosts.

XLA splits a copy or a collective into a start operation, which returns at once, and a done
operation, which waits for completion. A done names its start: `copy-done((…) %copy-start.4)`.

XLA implements transfers between slices as sends and receives that its multi-slice runtime executes
on the host:
`recv-done(…), frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime"}`.

XLA sends arrays to the host and receives results with `send`, `send-done`, `recv` and `recv-done`
operations marked `is_host_transfer=true`. They come from callbacks into Python (JAX) and from
operations outside of compilation (TensorFlow). Transfers between slices also go through the host,
but they are communication and not included here.
"""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.core.causes import Cause
from tb_perfadvisor.signals.device.device_work import work_rows
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation, executions, xla_operations
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.hlo_text import Instruction, Shape, parse_instruction
from tb_perfadvisor.trace.integer_groups import distinct, is_in, stable_order
from tb_perfadvisor.trace.intervals import Intervals, intersect, overlap_ns
from tb_perfadvisor.trace.tables import Int32, Int64


class AsyncPairs(Struct, frozen=True):
    """Executions of done operations in the used window; columns of shape (n,), in order of start.

    Excludes executions whose start was not recorded.
    """

    start: Int32
    """Event of the start operation."""
    done: Int32
    """Event of the done operation, which waits."""
    op: Int32
    """Row of the `HloTable` of the done operation."""
    between_ns: Int64
    """Time from the end of the start to the beginning of the done."""
    hidden_ns: Int64
    """The part of this time in which the core computes."""

    def __len__(self) -> int:
        """Number of pairs."""
        return len(self.done)


@memoized
def async_pairs(signals: Signals) -> AsyncPairs:
    """Every execution of a done operation in the used window, with its start."""
    trace, events = signals.trace, signals.trace.events
    rows = work_rows(signals)
    rows = rows[is_in(rows, trace.hlo_events.row)]
    op = trace.operations(rows)
    # Rows are in order of start, and the stable sort keeps that order within each operation.
    order = stable_order(op)
    ordered = op[order]
    wanted = _asynchronous(signals)
    begin, end = (np.searchsorted(ordered, wanted, side).tolist() for side in ("left", "right"))
    rows_by_op: dict[int, Int32] = {
        number: rows[order[first:last]]
        for number, first, last in zip(wanted, begin, end, strict=True)
    }
    ops_by_name = defaultdict(list)
    for number in rows_by_op:
        name = trace.text(int(trace.hlo.name[number]))
        ops_by_name[trace.hlo.module[number], name].append(number)
    pairs: list[tuple[Int32, Int32, Int32]] = []
    for done_op, done in rows_by_op.items():
        name = _start_of(trace.text(int(trace.hlo.text[done_op])))
        for start_op in ops_by_name.get((trace.hlo.module[done_op], name), ()) if name else ():
            start = rows_by_op[start_op]
            slot = np.searchsorted(events.start_ns[start], events.start_ns[done], "right") - 1
            has_start = slot >= 0
            paired = done[has_start]
            op_column = np.full(len(paired), done_op, dtype=np.int32)
            pairs.append((start[slot[has_start]], paired, op_column))
    if not pairs:
        nothing, no_time = np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int64)
        return AsyncPairs(nothing, nothing, nothing, no_time, no_time)
    start, done, op = (np.concatenate(column) for column in zip(*pairs, strict=True))
    order = np.argsort(done, kind="stable")
    start, done, op = start[order], done[order], op[order]
    from_ns = events.end_ns[start]
    until_ns = np.maximum(events.start_ns[done], from_ns)
    kernels = rows[events.kind[rows] == EventKind.KERNEL]
    compute = events.spans(kernels)
    hidden_ns = overlap_ns(compute, from_ns, until_ns)
    return AsyncPairs(start, done, op, until_ns - from_ns, hidden_ns)


def _asynchronous(signals: Signals) -> list[int]:
    """Start and done operations that run in the used window."""
    trace = signals.trace
    ops = []
    for op in signals.hlo.op.tolist():
        instruction = parse_instruction(trace.text(int(trace.hlo.text[op])))
        name = trace.text(int(trace.hlo.name[op]))
        if instruction is not None and (
            _is_half(instruction, name, "start") or _is_half(instruction, name, "done")
        ):
            ops.append(op)
    return ops


def _is_half(instruction: Instruction, name: str, half: str) -> bool:
    """Whether an operation is the `start` or the `done` half of an asynchronous one."""
    # A fusion may be called `async-collective-done.3`. A plain `send` or `recv` is a start.
    opcode = instruction.opcode
    if opcode == "fusion":
        return f"-{half}" in name
    return opcode.endswith(f"-{half}") or (half == "start" and opcode in ("send", "recv"))


def _start_of(text: str) -> str:
    """The name of the start that a done waits for: its last operand; empty for none."""
    instruction = parse_instruction(text)
    if instruction is None or not instruction.operand_names:
        return ""
    name = text.partition(" = ")[0].strip().lstrip("%")
    return instruction.operand_names[-1] if _is_half(instruction, name, "done") else ""


BARRIER = "barrier-cores"
"""Name that the runtime gives them on a core's `XLA TraceMe` line."""


def barriers(trace: Trace) -> Int32:
    """Rows of all barriers in a trace, on all cores."""
    rows = trace.rows(EventKind.DEVICE_ANNOTATION)
    names = distinct(trace.events.name[rows])
    barrier_names = [name for name in names.tolist() if trace.strings[name] == BARRIER]
    barrier_rows: Int32 = rows[is_in(trace.events.name[rows], barrier_names)]
    return barrier_rows


_RUNTIME = "megascale"


class CrossSlice(Struct, frozen=True):
    """Waits for transfers in the used window; columns of shape (n,), in order of start."""

    done: Int32
    """Event of the done operation, which waits."""
    op: Int32
    """Row of the `HloTable`."""
    size_bytes: Int64
    between_ns: Int64
    """Time from the start of the transfer to the wait, in which it could be hidden."""


@memoized
def cross_slice(signals: Signals) -> CrossSlice:
    """Waits for transfers between slices; excludes those whose start was not recorded."""
    size_bytes = np.full(len(signals.trace.hlo.name), -1, dtype=np.int64)
    for operation in xla_operations(signals):
        is_done = operation.opcode in ("recv-done", "send-done")
        if is_done and _RUNTIME in operation.instruction.attributes:
            size_bytes[operation.op] = _size_bytes(operation)
    pairs = async_pairs(signals)
    is_transfer = size_bytes[pairs.op] >= 0
    return CrossSlice(
        done=pairs.done[is_transfer],
        op=pairs.op[is_transfer],
        size_bytes=size_bytes[pairs.op[is_transfer]],
        between_ns=pairs.between_ns[is_transfer],
    )


def _size_bytes(operation: XlaOperation) -> int:
    """The size of the transferred array; the tuple's other elements are flags and a token."""
    arrays = (*operation.instruction.results, *operation.instruction.operands)
    sizes = (shape.elements * shape.element_bits // 8 for shape in arrays)
    return max(sizes, default=0)


_TRANSFERS = ("send", "send-done", "recv", "recv-done")
# Compiled on first use, because few programs need it; `re` caches it.
_CHANNEL = r"channel_id=(\d+)"


@memoized
def host_transfers(signals: Signals) -> tuple[XlaOperation, ...]:
    """Sends to the program's own host and receives from it, costliest first."""
    return tuple(
        operation
        for operation in xla_operations(signals)
        if operation.opcode in _TRANSFERS
        and "is_host_transfer=true" in operation.instruction.attributes
        and "megascale" not in operation.instruction.attributes
    )


@memoized
def transfer_rows(signals: Signals) -> Int32:
    """Executions of these transfers in the used window."""
    transfers = host_transfers(signals)
    return executions(signals, transfers) if transfers else np.empty(0, dtype=np.int32)


@memoized
def transfer_waits(signals: Signals) -> Intervals:
    """Time of the used window in which the core only waits for these transfers."""
    events, rows = signals.trace.events, transfer_rows(signals)
    waits = events.spans(rows)
    return intersect(signals.attribution.intervals[Cause.COPIES], waits)


def channel_of(operation: XlaOperation) -> str:
    """The channel number that a transfer shares with its `-done`; empty if unknown."""
    match = re.search(_CHANNEL, operation.instruction.attributes)
    return match[1] if match else ""


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
    waits = events.spans(rows)
    return intersect(signals.attribution.intervals[Cause.COPIES], waits)
