"""XLA operations of one kind that take much of a TPU core's time."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar

import numpy as np

from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Rule
from tb_perfadvisor.rules.finding import Column, Finding, Remedy, Table, costliest
from tb_perfadvisor.rules.savings.faster_device_work import faster_device_work
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.device.device_work import time_within
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation, executions, xla_operations
from tb_perfadvisor.trace.tables import Int32, Int64

MOST_OPERATIONS = 30


class CostlyOperations(Rule):
    """Base of the rules that look for one kind of XLA operation.

    High is the time in which the core executes only these operations; low is 0.
    """

    category = "xla"
    needs = (Need.DEVICE_EVENTS, Need.TILED_LAYOUTS)

    activity: ClassVar[str]
    """What takes the time, to follow `12 ms of each step `."""
    noun: ClassVar[str]
    """What one of them is called."""
    remaining_share: ClassVar[float]
    """The share of their time that is expected to remain after the change."""
    remedies: ClassVar[tuple[Remedy, ...]]

    @abstractmethod
    def selects(self, operation: XlaOperation) -> bool:
        """Whether an operation is of this kind."""

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when the operations take a good part of the step."""
        operations = [o for o in xla_operations(signals) if self.selects(o)]
        if not operations:
            return
        rows = executions(signals, operations)
        then_ns = (signals.trace.events.duration_ns[rows] * self.remaining_share).astype(np.int64)
        saving = faster_device_work(signals, rows, then_ns, basis="heuristic")
        if self.is_minor(saving.claimed_ns, signals):
            return
        cost_ns = time_within(signals, rows, saving.claims)
        table = _table(f"{self.noun.capitalize()}s", signals, operations, rows, cost_ns)
        yield Finding(
            summary=(
                f"{per_step(saving.claimed_ns, signals)} {self.activity}"
                f" ({count_per_step(len(rows), self.noun, signals)}); most in {table.rows[0][0]}."
            ),
            saving=saving,
            evidence=(table, costliest("Longest executions", signals.worker, rows, cost_ns)),
            remedies=self.remedies,
        )


def _table(
    title: str, signals: Signals, operations: Sequence[XlaOperation], rows: Int32, cost_ns: Int64
) -> Table:
    """The operations with their time, the costliest first."""
    trace = signals.trace
    op = trace.operations(rows)
    size = len(trace.hlo.name)
    total = np.bincount(op, weights=cost_ns, minlength=size).astype(np.int64)
    count = np.bincount(op, minlength=size)
    ranked = sorted(operations, key=lambda operation: -int(total[operation.op]))[:MOST_OPERATIONS]
    return Table(
        title,
        (
            Column("op", "Operation"),
            Column("array", "Result"),
            Column("path", "Called by"),
            Column("source", "Source line"),
            Column("count", "Count", "count"),
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
