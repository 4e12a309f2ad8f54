"""Asynchronous operations of a TPU: where each starts, where the core waits for it.

XLA splits a copy or a collective into a start, which returns at once, and a done, which waits
until it is complete. A done names its start: `copy-done((…) %copy-start.4)`.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.core.hlo import Instruction, parse_instruction
from tb_perfadvisor.signals.device.device_work import work_rows
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.intervals import overlap_ns, union
from tb_perfadvisor.trace.tables import Int32, Int64


class AsyncPairs(Struct, frozen=True):
    """Executions of done operations in the used window; columns of shape (n,), in order of start.

    Only those whose start was recorded before them.
    """

    start: Int32
    """Event that starts it."""
    done: Int32
    """Event that waits for it."""
    op: Int32
    """Row of the `HloTable` of the done operation."""
    between_ns: Int64
    """From the start's end to the done's beginning."""
    hidden_ns: Int64
    """What of that the core computed in."""

    def __len__(self) -> int:
        """Number of pairs."""
        return len(self.done)


@memoized
def async_pairs(signals: Signals) -> AsyncPairs:
    """Every done operation of the window with its start."""
    trace, events = signals.trace, signals.trace.events
    table = trace.hlo_events
    rows = np.intersect1d(table.row, work_rows(signals), assume_unique=True)
    op = trace.by_event(table.row, table.op, -1)[rows]
    # Rows are in order of start: so is each operation's list of executions.
    order = np.argsort(op, kind="stable")
    ordered = op[order]
    wanted = _asynchronous(signals)
    begin, end = (np.searchsorted(ordered, wanted, side).tolist() for side in ("left", "right"))
    executed: dict[int, Int32] = {
        one: rows[order[at:until]] for one, at, until in zip(wanted, begin, end, strict=True)
    }
    starts = defaultdict(list)
    for one in executed:
        starts[trace.hlo.module[one], trace.text(int(trace.hlo.name[one]))].append(one)
    pairs: list[tuple[Int32, Int32, Int32]] = []
    for one, done in executed.items():
        named = _start_of(trace.text(int(trace.hlo.text[one])))
        for start_op in starts.get((trace.hlo.module[one], named), ()) if named else ():
            start = executed[start_op]
            slot = np.searchsorted(events.start_ns[start], events.start_ns[done], "right") - 1
            is_found = slot >= 0
            first = start[slot[is_found]]
            own = done[is_found]
            pairs.append((first, own, np.full(len(own), one, dtype=np.int32)))
    if not pairs:
        nothing, no_time = np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int64)
        return AsyncPairs(nothing, nothing, nothing, no_time, no_time)
    start, done, of = (np.concatenate(column) for column in zip(*pairs, strict=True))
    order = np.argsort(done, kind="stable")
    start, done, of = start[order], done[order], of[order]
    from_ns = events.end_ns[start]
    until_ns = np.maximum(events.start_ns[done], from_ns)
    kernels = rows[events.kind[rows] == EventKind.KERNEL]
    compute = union(events.start_ns[kernels], events.end_ns[kernels])
    hidden_ns = overlap_ns(compute, from_ns, until_ns)
    return AsyncPairs(start, done, of, until_ns - from_ns, hidden_ns)


def _asynchronous(signals: Signals) -> list[int]:
    """Operations that start something or wait for it."""
    trace = signals.trace
    found = []
    for op in signals.hlo.op.tolist():
        instruction = parse_instruction(trace.text(int(trace.hlo.text[op])))
        name = trace.text(int(trace.hlo.name[op]))
        if instruction is not None and (
            _is(instruction, name, "start") or _is(instruction, name, "done")
        ):
            found.append(op)
    return found


def _is(instruction: Instruction, name: str, part: str) -> bool:
    # `async-collective-done.3` may be a fusion; a send or recv starts without saying so.
    opcode = instruction.opcode
    if opcode == "fusion":
        return f"-{part}" in name
    return opcode.endswith(f"-{part}") or (part == "start" and opcode in ("send", "recv"))


def _start_of(text: str) -> str:
    """The operation that a done waits for: the operand that started it; empty for none."""
    instruction = parse_instruction(text)
    if instruction is None or not instruction.operand_names:
        return ""
    name = text.partition(" = ")[0].strip().lstrip("%")
    return instruction.operand_names[-1] if _is(instruction, name, "done") else ""
