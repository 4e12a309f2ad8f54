"""A finding about XLA operations of one kind that take much of a TPU core's time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from tb_perfadvisor.rules.amounts import count_per_step, per_step, share_of_window
from tb_perfadvisor.rules.finding import Basis, Column, Finding, Remedy, Table, costliest
from tb_perfadvisor.rules.savings.faster_device_work import faster_device_work
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.device.device_work import time_within
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation, executions, xla_operations
from tb_perfadvisor.trace.tables import Int32, Int64

MOST_OPERATIONS = 30


def costly_operations(
    signals: Signals,
    is_meant: Callable[[XlaOperation], bool],
    *,
    what: str,
    noun: str,
    remaining: float | Callable[[XlaOperation], float],
    minimum_share: float,
    remedies: tuple[Remedy, ...],
    basis: Basis = "heuristic",
) -> Iterable[Finding]:
    """A finding when operations of one kind take a large part of the step.

    High is the time in which the core executes nothing else; low is 0.

    Args:
        signals: The worker's facts.
        is_meant: Selects the operations.
        what: What they do, to follow `12 ms of each step `.
        noun: One of them.
        remaining: The share of its time that an operation is expected to take after the change.
        minimum_share: The share of the step below which nothing is reported.
        remedies: What to do.
        basis: What the estimate rests on.
    """
    meant = [operation for operation in xla_operations(signals) if is_meant(operation)]
    if not meant:
        return
    rows = executions(signals, meant)
    left = np.ones(len(signals.trace.hlo.name))
    for operation in meant:
        left[operation.op] = remaining(operation) if callable(remaining) else remaining
    op = signals.trace.operations(rows)
    then_ns = (signals.trace.events.duration_ns[rows] * left[op]).astype(np.int64)
    saving = faster_device_work(signals, rows, then_ns, basis=basis)
    taken_ns = saving.claimed_ns
    if not taken_ns or share_of_window(taken_ns, signals) < minimum_share:
        return
    cost_ns = time_within(signals, rows, saving.claims)
    table = _table(signals, meant, op, cost_ns, f"Each {noun}")
    yield Finding(
        summary=(
            f"{per_step(taken_ns, signals)} {what} ({count_per_step(len(rows), noun, signals)});"
            f" most in {table.rows[0][0]}."
        ),
        saving=saving,
        evidence=(table, costliest("The longest executions", signals.worker, rows, cost_ns)),
        remedies=remedies,
    )


def _table(
    signals: Signals, meant: Sequence[XlaOperation], op: Int32, cost_ns: Int64, title: str
) -> Table:
    """The operations with their time, the costliest first."""
    trace = signals.trace
    size = len(trace.hlo.name)
    total = np.bincount(op, weights=cost_ns, minlength=size).astype(np.int64)
    count = np.bincount(op, minlength=size)
    ranked = sorted(meant, key=lambda operation: -int(total[operation.op]))[:MOST_OPERATIONS]
    return Table(
        title,
        (
            Column("op", "Operation"),
            Column("array", "Result"),
            Column("path", "Called by"),
            Column("source", "Source line"),
            Column("count", "Times", "count"),
            Column("total_ns", "Time", "ns"),
        ),
        tuple(
            (
                operation.name,
                str(operation.instruction.results[0]) if operation.instruction.results else "",
                operation.path,
                trace.text(int(trace.hlo.source_line[operation.op])),
                int(count[operation.op]),
                int(total[operation.op]),
            )
            for operation in ranked
        ),
    )
