"""Arguments that an XLA program copies because it may not overwrite them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.costly_operations import operations_table
from tb_perfadvisor.rules.faster_operations import FasterOperations
from tb_perfadvisor.rules.finding import Finding, Saving, costliest
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.device.device_work import time_within
from tb_perfadvisor.signals.program.copied_updates import Copies, copies_on_cpu, undonated
from tb_perfadvisor.signals.program.graph import FasterOperation
from tb_perfadvisor.signals.program.updates import copied_updates
from tb_perfadvisor.trace.intervals import total_ns
from tb_perfadvisor.units import format_bytes


class UndonatedArguments(FasterOperations):
    """The step copies whole arrays to change a few of their elements.

    What it finds
    -------------
    Arguments that the program updates in place (`dynamic_update_slice`, `scatter`) and returns, if
    the result does not take the memory of the argument. The embedded program shows both.

    Why it matters
    --------------
    The caller may still use an argument that it has not donated. So XLA copies it first. In
    decoding, that is the whole cache for each token.

    How it is measured
    ------------------
    A copy reads and writes the array once. Low assumes that the writing alone goes, and high that
    both go. Expected is halfway, because whatever else reads the array can share the reading. The
    time is that of the operations on the array: copies, updates, and those that read it.

    On the CPU, the copy's time is measured: until its first reader starts, because threads share
    the copying and the profile shows the part of one. Expected keeps a tenth, and low half, for
    readers that find the array in no cache then.

    When to ignore
    --------------
    When the old array is still needed after the step.

    How to verify
    -------------
    The copies are gone, and the program's results take no memory of their own.

    References:
    ----------
    JAX documentation, "Buffer donation".
    """

    id = "undonated-arguments"
    title = "Donate the arguments that the step returns updated"

    minimum_share = Limit(0.03, "share", "Copies of small arrays take less than this.")

    noun = "operation on the array"
    changes = ("donated-arguments",)
    needs = (Need.WORK, Need.XLA_OPERATIONS, Need.PROGRAMS)

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding if the copies take a good part of the step."""
        copies = copies_on_cpu(signals)
        if copies is None:
            yield from super().check(signals)
        elif not self.is_minor(total_ns(copies.time), signals):
            yield self._on_cpu(signals, copies)

    def _on_cpu(self, signals: Signals, copies: Copies) -> Finding:
        most_ns = total_ns(copies.time)
        instance, summary = self.describe(signals, per_step(most_ns, signals))
        rows, cost_ns = copies.rows, time_within(signals, copies.rows, copies.time)
        return Finding(
            instance=instance,
            summary=summary,
            saving=Saving(most_ns // 2, most_ns * 9 // 10, most_ns, copies.time, "modeled"),
            evidence=(
                operations_table("Copies", signals, copies.operations, rows, cost_ns),
                costliest("Longest copies", signals.worker, rows, cost_ns),
            ),
            remedies=advise(*self.changes),
        )

    def faster(self, signals: Signals) -> Sequence[FasterOperation]:
        """The copies, and what else works on the arrays."""
        return copied_updates(signals)

    def describe(self, signals: Signals, cost: str) -> tuple[str, str]:
        """Which arrays are copied."""
        found = undonated(signals)
        size = format_bytes(sum(update.shape.padded_bytes for update in found))
        return f"{len(found)} arrays of {size}", (
            f"{cost} goes into {len(found)} arrays of {size} in all, which the program copies to"
            " change a part of each, because its caller has not donated them."
        )
