"""Advice on kinds of XLA operation that take time of a TPU core for themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from tb_perfadvisor.rules.base import (
    Basis,
    Finding,
    Remedy,
    count_per_step,
    per_step,
    share_of_window,
)
from tb_perfadvisor.rules.evidence.evidence import Column, Table, costliest
from tb_perfadvisor.rules.savings.shorter_work import shorter_work
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.device.device_work import time_within
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation, executions, xla_operations
from tb_perfadvisor.trace.intervals import total_ns
from tb_perfadvisor.trace.tables import Int32, Int64

MOST_OPERATIONS = 30


def operation_time(
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
    """A finding when some operations take a good part of the step for themselves.

    High is the time in which the core executes nothing else; low is 0.

    Args:
        signals: The worker's facts.
        is_meant: Which operations.
        what: What they do, to follow `12 ms of each step `.
        noun: One of them.
        remaining: Which share of its time an operation is expected to take yet.
        minimum_share: Of the step, below which nothing is said.
        remedies: What to do.
        basis: What the estimate rests on.
    """
    meant = [one for one in xla_operations(signals) if is_meant(one)]
    if not meant:
        return
    rows = executions(signals, meant)
    left = np.ones(len(signals.trace.hlo.name))
    for one in meant:
        left[one.op] = remaining(one) if callable(remaining) else remaining
    op = signals.trace.operations(rows)
    then_ns = (signals.trace.events.duration_ns[rows] * left[op]).astype(np.int64)
    saving = shorter_work(signals, rows, then_ns, basis=basis)
    taken_ns = total_ns(saving.claims)
    if not taken_ns or share_of_window(taken_ns, signals) < minimum_share:
        return
    cost_ns = time_within(signals, rows, saving.claims)
    table = _table(signals, meant, op, cost_ns, f"Every {noun}")
    yield Finding(
        summary=(
            f"{per_step(taken_ns, signals)} {what} ({count_per_step(len(rows), noun, signals)});"
            f" most in {table.rows[0][0]}."
        ),
        saving=saving,
        evidence=(table, costliest("The longest of them", signals.worker, rows, cost_ns)),
        remedies=remedies,
    )


def _table(
    signals: Signals, meant: Sequence[XlaOperation], op: Int32, cost_ns: Int64, title: str
) -> Table:
    """Time by operation, the costliest first."""
    trace = signals.trace
    size = len(trace.hlo.name)
    total = np.bincount(op, weights=cost_ns, minlength=size).astype(np.int64)
    count = np.bincount(op, minlength=size)
    ranked = sorted(meant, key=lambda one: -int(total[one.op]))[:MOST_OPERATIONS]
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
                one.name,
                str(one.instruction.results[0]) if one.instruction.results else "",
                one.path,
                trace.text(int(trace.hlo.source_line[one.op])),
                int(count[one.op]),
                int(total[one.op]),
            )
            for one in ranked
        ),
    )
