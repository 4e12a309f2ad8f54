"""XLA programs of which a change makes operations faster."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.costly_operations import operations_table
from tb_perfadvisor.rules.finding import Finding, costliest
from tb_perfadvisor.rules.savings import faster_device_work
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.device.device_work import time_within
from tb_perfadvisor.signals.program.argument_reads import (
    WeightReads,
    argument_reads_ns,
    weight_reads,
    without_widening,
)
from tb_perfadvisor.signals.program.both_branches import Choice, both_branches
from tb_perfadvisor.signals.program.graph import FasterOperation, in_proportion, mean_ns, total_ns
from tb_perfadvisor.signals.program.moved_rows import partly_used_sorts
from tb_perfadvisor.signals.program.updates import (
    copied_updates,
    rewritten_arrays,
    undonated,
    updates,
)
from tb_perfadvisor.signals.tpu.xla_operations import executions
from tb_perfadvisor.trace.tables import Float64, Int64
from tb_perfadvisor.units import format_bytes, format_share


class FasterOperations(Rule):
    """Base of the rules that read the embedded program.

    What each operation would take comes from a signal. A finding needs an expected saving of some
    size.
    """

    needs: ClassVar[tuple[Need, ...]] = (Need.DEVICE_EVENTS, Need.TILED_LAYOUTS, Need.PROGRAMS)

    noun: ClassVar[str]
    """What one of the operations is called."""
    changes: ClassVar[tuple[str, ...]] = ()
    reads_less: ClassVar[bool] = False
    """Whether the change makes arguments smaller. Else, no step gets shorter than reading them."""

    @abstractmethod
    def faster(self, signals: Signals) -> Sequence[FasterOperation]:
        """The operations, and what they would take."""

    @abstractmethod
    def describe(self, signals: Signals, cost: str) -> tuple[str, str]:
        """The instance, and the summary that begins with what the operations cost."""

    def advice(self, signals: Signals) -> tuple[str, ...]:
        """The changes to advise."""
        return self.changes

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding if the operations would save a good part of the step."""
        faster = self.faster(signals)
        if not faster:
            return
        operations = [one.operation for one in faster]
        remains = np.zeros((3, len(signals.trace.hlo.name)))
        for one in faster:
            then = np.array((one.expected_ns, one.best_ns, one.worst_ns))
            remains[:, one.operation.op] = then / max(mean_ns(signals, one.operation), 1.0)
        rows = executions(signals, operations)
        now_ns = signals.trace.events.duration_ns[rows]
        # An execution that takes long, because others compute meanwhile, takes long then, too.
        then_ns = remains[:, signals.trace.operations(rows)] * now_ns
        if not self.reads_less:
            then_ns = _with_reads(signals, now_ns, then_ns)
        expected, best, worst = then_ns.astype(np.int64)
        saving = faster_device_work(
            signals, rows, expected, basis="modeled", least_then_ns=best, most_then_ns=worst
        )
        if self.is_minor(saving.expected_ns, signals):
            return
        cost_ns = time_within(signals, rows, saving.claims)
        table = operations_table(f"{self.noun.capitalize()}s", signals, operations, rows, cost_ns)
        instance, summary = self.describe(signals, per_step(saving.claimed_ns, signals))
        yield Finding(
            instance=instance,
            summary=summary,
            saving=saving,
            evidence=(table, costliest("Longest executions", signals.worker, rows, cost_ns)),
            remedies=advise(*self.advice(signals)),
        )


def _with_reads(signals: Signals, now_ns: Int64, then_ns: Float64) -> Float64:
    """Times such that the whole window is no shorter than reading all arguments takes.

    The first and the last row are times at usual rates, the one between them those at best.
    """
    saved_ns = np.maximum(now_ns - then_ns, 0)
    whole_ns = np.maximum(saved_ns.sum(axis=1), 1)
    reads_ns = np.array([argument_reads_ns(signals, at_peak=best) for best in (False, True, False)])
    most_ns = np.maximum(signals.attribution.window_ns - reads_ns, 0)
    times: Float64 = now_ns - saved_ns * np.minimum(most_ns / whole_ns, 1)[:, None]
    return times


_COUNTED = (0.15, 0.02, 0.5)
"""What remains of a branch that a counter asks for: every seventh step as expected, every second at
worst."""
_AT_BEST = 0.05


class BothBranches(FasterOperations):
    """All branches are computed, and one result is taken."""

    id = "both-branches"
    title = "Compute only the branch that is taken"

    minimum_share = Limit(0.05, "share", "A conditional costs something, too.")

    needs = (Need.WORK, Need.XLA_OPERATIONS, Need.PROGRAMS)

    noun = "operation"
    changes = ("one-branch",)

    def faster(self, signals: Signals) -> Sequence[FasterOperation]:
        return [
            FasterOperation(o, expected * now, best * now, worst * now)
            for found in both_branches(signals)
            for expected, best, worst in (_remains(found),)
            for o in found.operations
            for now in (mean_ns(signals, o),)
        ]

    def describe(self, signals: Signals, cost: str) -> tuple[str, str]:
        worst = max(both_branches(signals), key=lambda one: total_ns(signals, one.operations))
        where = f" ({worst.line})" if worst.line else ""
        return f"a select of {worst.branches} results{where}", (
            f"{cost} goes into branches that are computed whether they are taken or not{where}."
        )


def _remains(found: Choice) -> tuple[float, float, float]:
    if found.is_counted:
        return _COUNTED
    return 1 / found.branches, _AT_BEST, 1.0


_HOW = {
    "where": "a choice over all positions",
    "concatenate": "joining old and new elements",
    "dense": "adding a gradient for all rows",
    "gather": "moving all rows into another order",
}


class RewrittenArrays(FasterOperations):
    """The step writes whole arrays to change a few of their elements."""

    id = "rewritten-arrays"
    title = "Update arrays in place"

    minimum_share = Limit(0.03, "share", "Smaller arrays take less than this either way.")

    noun = "operation on the array"
    changes = ("slice-in-place", "rows-of-gradient", "order-by-index")

    def faster(self, signals: Signals) -> Sequence[FasterOperation]:
        return rewritten_arrays(signals)

    def describe(self, signals: Signals, cost: str) -> tuple[str, str]:
        found = [update for update in updates(signals) if update.how in _HOW]
        size = format_bytes(sum(update.shape.padded_bytes for update in found))
        largest = max(found, key=lambda update: update.shape.padded_bytes)
        how = _HOW[largest.how]
        return f"{size} by {how}", (
            f"{cost} goes into {len(found)} arrays of {size} in all, which are written whole to"
            f" change a part of them, by {how}: the largest is {largest.shape}."
        )


_SAMPLED, _SELECTED = (0.05, 0.0, 0.25), (0.4, 0.0, 0.8)
"""What remains as expected, at best and at worst: of a shuffle if a sample is drawn, and of a sort
if the largest are selected."""


class SortedForFew(FasterOperations):
    """The step sorts many elements to use a few of them."""

    id = "sorted-for-few"
    title = "Draw or select a few elements without sorting all"

    minimum_share = Limit(0.03, "share", "Sorts of a few thousand elements take less than this.")

    needs = (Need.WORK, Need.XLA_OPERATIONS, Need.PROGRAMS)

    noun = "operation"

    def faster(self, signals: Signals) -> Sequence[FasterOperation]:
        faster: dict[int, FasterOperation] = {}
        for found in partly_used_sorts(signals):
            expected, best, worst = _SAMPLED if found.is_random else _SELECTED
            for operation in (found.operation, *found.beside):
                now = mean_ns(signals, operation)
                faster[operation.op] = FasterOperation(
                    operation, expected * now, best * now, worst * now
                )
        return list(faster.values())

    def advice(self, signals: Signals) -> tuple[str, ...]:
        """Random numbers are drawn, others are selected."""
        is_random = any(found.is_random for found in partly_used_sorts(signals))
        return ("draw-indices",) if is_random else ("select-the-largest",)

    def describe(self, signals: Signals, cost: str) -> tuple[str, str]:
        worst = max(partly_used_sorts(signals), key=lambda one: total_ns(signals, [one.operation]))
        line = signals.trace.text(int(signals.trace.hlo.source_line[worst.operation.op]))
        what = "random numbers" if worst.is_random else "elements"
        few = f"{worst.used:,} of {worst.sorted:,}"
        return f"{few}{f' ({line})' if line else ''}", (
            f"{cost} goes into sorting {worst.sorted:,} {what}, of which {worst.used:,} are used."
        )


class UndonatedArguments(FasterOperations):
    """The step copies whole arrays to change a few of their elements."""

    id = "undonated-arguments"
    title = "Donate the arguments that the step returns updated"

    minimum_share = Limit(0.03, "share", "Copies of small arrays take less than this.")

    noun = "operation on the array"
    changes = ("donated-arguments",)
    needs = (Need.WORK, Need.XLA_OPERATIONS, Need.PROGRAMS)

    def faster(self, signals: Signals) -> Sequence[FasterOperation]:
        return copied_updates(signals)

    def describe(self, signals: Signals, cost: str) -> tuple[str, str]:
        found = undonated(signals)
        size = format_bytes(sum(update.shape.padded_bytes for update in found))
        return f"{len(found)} arrays of {size}", (
            f"{cost} goes into {len(found)} arrays of {size} in all, which the program copies to"
            " change a part of each, because its caller has not donated them."
        )


class WideWeights(FasterOperations):
    """The step mostly reads weights, in more bits than it needs."""

    id = "wide-weights"
    title = "Store the weights in 8 bits"

    minimum_share = Limit(0.1, "share", "A change that costs accuracy has to bring something.")
    minimum_read_share = 0.4
    """Where reading weights takes less, other work hides a part of it."""
    most_rows = 64
    """From about a hundred rows on, the matrix unit takes longer than the memory."""

    noun = "operation that reads weights"
    changes = ("eight-bit-weights",)
    reads_less = True

    def faster(self, signals: Signals) -> Sequence[FasterOperation]:
        reads = self._reads(signals)
        if reads is None or reads.read_ns < self.minimum_read_share * signals.attribution.window_ns:
            return ()
        expected, high = (part * reads.saved_ns for part in (0.9, 1.1))
        return in_proportion(signals, reads.operations, (0.0, expected, high))

    def describe(self, signals: Signals, cost: str) -> tuple[str, str]:
        reads = self._reads(signals)
        size, read_ns = (reads.size_bytes, reads.read_ns) if reads is not None else (0, 0.0)
        each = format_bytes(round(size / signals.steps.count))
        share = format_share(min(read_ns / signals.attribution.window_ns, 1.0))
        return f"{each} in each step", (
            f"Each step reads {each} of weights in 16 bits or more, which takes {share} of it, for"
            f" at most {round(self.most_rows)} rows. In 8 bits, they have half of the bytes."
        )

    def _reads(self, signals: Signals) -> WeightReads | None:
        return weight_reads(signals, round(self.most_rows))


class WidenedWeights(FasterOperations):
    """The step widens whole matrices of 8-bit weights before it multiplies them."""

    id = "widened-weights"
    title = "Scale the result instead of the weights"

    minimum_share = Limit(0.03, "share", "Small matrices are widened in less than this.")

    noun = "operation"
    changes = ("scale-the-result",)

    def faster(self, signals: Signals) -> Sequence[FasterOperation]:
        return without_widening(signals)

    def describe(self, signals: Signals, cost: str) -> tuple[str, str]:
        found = without_widening(signals)
        shape = found[0].operation.instruction.results[0]
        return f"{len(found)} operations", (
            f"{cost} goes into widening 8-bit weights before they are multiplied, in {len(found)}"
            f" operations; most in {found[0].operation.name}, to {shape}."
        )
