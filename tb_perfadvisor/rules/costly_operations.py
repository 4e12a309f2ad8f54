"""XLA operations of one kind that take much of a TPU core's time."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
from msgspec.structs import replace

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Rule
from tb_perfadvisor.rules.finding import Column, Finding, Saving, Table, costliest
from tb_perfadvisor.rules.savings import at_best_also, faster_device_work
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.device.device_work import time_within
from tb_perfadvisor.signals.tpu.memory_time import needed_ns
from tb_perfadvisor.signals.tpu.product_time import product_time_ns
from tb_perfadvisor.signals.tpu.xla_operations import (
    XlaOperation,
    executions,
    shares_with,
    xla_operations,
)
from tb_perfadvisor.trace.tables import Float64, Int32, Int64
from tb_perfadvisor.units import format_duration

MOST_OPERATIONS = 30
_UNKNOWN = " Nothing in the profile tells how much of it can be avoided."
MANY_TIMES = 5.0
"""Operations that only move data reach half of the memory's bandwidth or more if they are laid out
well, so several times the time that their bytes need tells of a bad layout."""


class FasterReader(NamedTuple):
    """An operation that gets faster without being of the kind that a rule looks for."""

    other: XlaOperation
    saved_ns: float
    """What one execution is expected to save."""
    kept_ns: float
    """What one execution takes at best."""


class CostlyOperations(Rule):
    """Base of the rules that look for one kind of XLA operation.

    High is the time in which the core executes only these operations, without what their work needs
    at the peaks of the data sheet; low is 0 unless a rule is sure of a part. If XLA fuses nothing
    with them, high also includes the time that the operations before and after them spend on the
    arrays that they exchange.
    """

    needs = (Need.DEVICE_EVENTS, Need.TILED_LAYOUTS)

    activity: ClassVar[str]
    """What takes the time, to follow `12 ms of each step `."""
    noun: ClassVar[str]
    """What one of them is called."""
    remaining_share: ClassVar[float]
    """The share of their time that is expected to remain after the change."""
    changes: ClassVar[tuple[str, ...]]
    is_priced: ClassVar[bool] = True
    """Whether the shapes tell what the operations would take. Else, nothing says whether the change
    gains here, and the severity is low."""
    expected_of_best: ClassVar[float] = 1.0
    """How many times the best time an operation is expected to take."""
    moves_data: ClassVar[bool] = False
    """Whether they only move data, so that their bytes tell how long they should take."""
    breaks_fusion: ClassVar[bool] = False
    """Whether XLA fuses nothing with them. Without them, it can fuse what is before and after, and
    the arrays between are neither written nor read."""

    @abstractmethod
    def selects(self, operation: XlaOperation) -> bool:
        """Whether an operation is of this kind."""

    def selected(self, signals: Signals) -> list[XlaOperation]:
        """The operations of this kind."""
        return [o for o in xla_operations(signals) if self.selects(o)]

    def best_ns(
        self, signals: Signals, operation: XlaOperation, *, at_peak: bool = False
    ) -> float | None:
        """How long one execution takes after the change, if all goes well; None if unknown.

        With `at_peak`, for the high end of the saving, it is at the peaks of the data sheet, else
        at the rates that operations reach in practice.
        """
        return 0.0

    def remains(self, signals: Signals, operation: XlaOperation) -> float:
        """The share of an operation's time that is expected to remain after the change."""
        return self.remaining_share

    def sure_share(self, signals: Signals, operation: XlaOperation) -> float:
        """The share of what an operation is expected to save that it saves at least."""
        return 0.0

    def changes_of(self, signals: Signals, operations: Sequence[XlaOperation]) -> tuple[str, ...]:
        """What to do about these operations, by id."""
        return self.changes

    def faster_readers(
        self, signals: Signals, operations: Sequence[XlaOperation]
    ) -> list[FasterReader]:
        """Other operations that get faster, because they read what these ones return."""
        return []

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when the operations take a good part of the step."""
        operations = self.selected(signals)
        if not operations:
            return
        rows = executions(signals, operations)
        saving = self._saving(signals, operations, rows)
        own_ns = saving.claimed_ns
        # At the rates of the data sheet, everything could be faster.
        avoidable_ns = min(self._avoidable_ns(signals, operations, rows), saving.high_ns)
        if self.is_minor(avoidable_ns, signals):
            return
        cost_ns = time_within(signals, rows, saving.claims)
        if self.breaks_fusion:
            saving = _with_fusible(signals, operations, saving)
        table = operations_table(f"{self.noun.capitalize()}s", signals, operations, rows, cost_ns)
        slow = _slower_than_its_bytes(signals, operations, rows) if self.moves_data else ""
        yield Finding(
            summary=(
                f"{per_step(own_ns, signals)} {self.activity}"
                f" ({count_per_step(len(rows), self.noun, signals)}); most in {table.rows[0][0]}."
                f"{slow}{_UNKNOWN if saving.is_unknown else ''}"
            ),
            saving=saving,
            evidence=(table, costliest("Longest executions", signals.worker, rows, cost_ns)),
            remedies=advise(*self.changes_of(signals, operations)),
            severity=None if self.is_priced and not saving.is_unknown else "low",
        )

    def _avoidable_ns(
        self, signals: Signals, operations: Sequence[XlaOperation], rows: Int32
    ) -> int:
        """Time of the operations beyond the best at usual rates."""
        best_ns = self._best(signals, operations, at_peak=False)[signals.trace.operations(rows)]
        return int(np.maximum(signals.trace.events.duration_ns[rows] - best_ns, 0).sum())

    def _saving(self, signals: Signals, operations: Sequence[XlaOperation], rows: Int32) -> Saving:
        """What faster operations save, and others that they make faster."""
        events, op = signals.trace.events, signals.trace.operations(rows)
        now_ns = events.duration_ns[rows]
        best_ns = self._best(signals, operations, at_peak=False)[op]
        least_ns = np.minimum(self._best(signals, operations, at_peak=True)[op], now_ns)
        remains = np.zeros(len(signals.trace.hlo.name))
        sure = np.zeros_like(remains)
        for o in operations:
            remains[o.op], sure[o.op] = self.remains(signals, o), self.sure_share(signals, o)
        then_ns = np.maximum(now_ns * remains[op], best_ns * self.expected_of_best)
        then_ns = np.minimum(then_ns, now_ns)
        most_ns = now_ns - sure[op] * (now_ns - then_ns)
        readers = [r for r in self.faster_readers(signals, operations) if r.other not in operations]
        if readers:
            saved_ns, kept_ns = np.zeros((2, len(signals.trace.hlo.name)))
            for reader in readers:
                saved_ns[reader.other.op], kept_ns[reader.other.op] = (
                    reader.saved_ns,
                    reader.kept_ns,
                )
            other_rows = executions(signals, [reader.other for reader in readers])
            other_op = signals.trace.operations(other_rows)
            other_ns = events.duration_ns[other_rows]
            other_then_ns = np.maximum(other_ns - saved_ns[other_op], 0)
            rows = np.append(rows, other_rows)
            then_ns = np.append(then_ns, other_then_ns)
            most_ns = np.append(most_ns, other_ns)
            least_ns = np.append(least_ns, np.minimum(kept_ns[other_op], other_then_ns))
        saving = faster_device_work(
            signals,
            rows,
            then_ns.astype(np.int64),
            basis="heuristic",
            least_then_ns=least_ns.astype(np.int64),
            most_then_ns=np.ceil(most_ns).astype(np.int64),
        )
        return replace(saving, is_unknown=bool((remains[op] == 1).all()) and not readers)

    def _best(
        self, signals: Signals, operations: Iterable[XlaOperation], *, at_peak: bool
    ) -> Float64:
        """The best time of each operation of the `HloTable`; 0 if unknown."""
        best_ns = np.zeros(len(signals.trace.hlo.name))
        for operation in operations:
            best = self.best_ns(signals, operation, at_peak=at_peak)
            # The time of something unknown is NaN, and of something that cannot improve infinite.
            best_ns[operation.op] = best if best is not None and best > 0 else 0.0
        return best_ns


def _with_fusible(signals: Signals, operations: Sequence[XlaOperation], saving: Saving) -> Saving:
    """Add to the high end what neighbors spend on arrays that are not needed if they are fused.

    A neighbor spends on an array the share of its time that the array has in its bytes. It takes at
    least as long as its matrix product.
    """
    shares = shares_with(signals, operations)
    rows = executions(signals, shares)
    share, least_ns = np.zeros((2, len(signals.trace.hlo.name)))
    for other, of_bytes in shares.items():
        share[other.op] = of_bytes
        least_ns[other.op] = product_time_ns(signals, other, at_peak=True) or 0.0
    op, now_ns = signals.trace.operations(rows), signals.trace.events.duration_ns[rows]
    gone_ns = np.minimum(now_ns * share[op], np.maximum(now_ns - least_ns[op], 0))
    return at_best_also(signals, saving, rows, gone_ns.astype(np.int64))


def _slower_than_its_bytes(
    signals: Signals, operations: Sequence[XlaOperation], rows: Int32
) -> str:
    """Name the operation that loses most time beyond what its bytes need; empty if none does."""
    op, duration_ns = signals.trace.operations(rows), signals.trace.events.duration_ns[rows]
    worst: tuple[float, str] = (0.0, "")
    for operation in operations:
        needed, durations = needed_ns(signals, operation), duration_ns[op == operation.op]
        mean_ns = float(durations.mean()) if durations.size else 0.0
        # How fast memory on the chip is depends on how it is accessed.
        instruction = operation.instruction
        is_on_chip = any(
            s.memory_space for s in (*instruction.results, *instruction.operands) if s.dims
        )
        if not is_on_chip and needed > 0 and mean_ns >= MANY_TIMES * needed:
            lost_ns = (mean_ns - needed) * durations.size
            times = f"{mean_ns / needed:.0f} times the {format_duration(round(needed))}"
            taken = f"{operation.name} takes {format_duration(round(mean_ns))}"
            text = f" {taken}, {times} that its bytes need."
            worst = max(worst, (lost_ns, text))
    return worst[1]


def operations_table(
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
            Column("needed_ns", "Time for its bytes", "ns"),
        ),
        tuple(
            (
                operation.name,
                str(operation.instruction.results[0]) if operation.instruction.results else "",
                operation.path,
                trace.text(int(trace.hlo.source_line[operation.op])),
                int(count[operation.op]),
                int(total[operation.op]),
                _rounded(needed_ns(signals, operation) * int(count[operation.op])),
            )
            for operation in ranked
        ),
        names_instance=True,
    )


def _rounded(time_ns: float) -> int | None:
    return None if np.isnan(time_ns) else round(time_ns)
