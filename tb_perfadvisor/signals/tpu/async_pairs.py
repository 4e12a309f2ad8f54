"""Asynchronous operations of a TPU: where each starts, and where the core waits for it.

XLA splits a copy or a collective into a start operation, which returns at once, and a done
operation, which waits for completion. A done names its start: `copy-done((…) %copy-start.4)`.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.device.device_work import work_rows
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.hlo_text import Instruction, parse_instruction
from tb_perfadvisor.trace.intervals import overlap_ns, union
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
    table = trace.hlo_events
    rows = np.intersect1d(table.row, work_rows(signals), assume_unique=True)
    op = trace.by_event(table.row, table.op, -1)[rows]
    # Rows are in order of start, and the stable sort keeps that order within each operation.
    order = np.argsort(op, kind="stable")
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
    compute = union(events.start_ns[kernels], events.end_ns[kernels])
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
