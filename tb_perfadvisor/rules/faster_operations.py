"""XLA operations that a change of the program makes faster, by what the program computes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Rule
from tb_perfadvisor.rules.costly_operations import operations_table
from tb_perfadvisor.rules.finding import Finding, costliest
from tb_perfadvisor.rules.savings import faster_device_work
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.device.device_work import time_within
from tb_perfadvisor.signals.program.argument_reads import argument_reads_ns
from tb_perfadvisor.signals.program.graph import FasterOperation, mean_ns
from tb_perfadvisor.signals.tpu.xla_operations import executions
from tb_perfadvisor.trace.tables import Float64, Int64


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
