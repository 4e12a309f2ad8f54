"""Operations that take much longer than their bytes and their arithmetic need."""

from __future__ import annotations

from collections.abc import Sequence

from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.faster_operations import FasterOperations
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.program.achievable_rate import (
    OperationNeeds,
    described,
    operation_needs,
)
from tb_perfadvisor.signals.program.graph import FasterOperation, mean_ns, total_ns
from tb_perfadvisor.units import format_share


class SlowOperation(FasterOperations):
    """An operation takes much longer than its work needs.

    What it finds
    -------------
    XLA operations that take a good part of the step and several times what their bytes, their
    products and their other arithmetic need. Copies, changes of shape, collectives, and what other
    rules look at are left out: sorts, look-ups, random numbers, and kernels of the program's own.
    So are convolutions of fewer than 16 channels.

    Why it matters
    --------------
    Whatever the reason is, this is time that the work does not need: a product that runs on the
    vector unit, a layout that fills a few lanes of each register, a dimension of size two at the
    end.

    How it is measured
    ------------------
    What an operation needs is the longest of: its bytes at the bandwidth that transfers reach, its
    products at the rate that products reach, or for few rows at which the matrix unit loads a
    factor, and its other arithmetic at 1,024 elements in each
    cycle, a multiple of that for divisions and exponentials. High is all time beyond it. Expected
    is half of it if the operation takes ten times what it needs, a quarter otherwise; low is a
    quarter, or nothing.

    When to ignore
    --------------
    When the operation is part of an algorithm that visits elements one after the other.

    How to verify
    -------------
    The operation is gone, or closer to what it needs.

    References:
    ----------
    Williams, Waterman, Patterson, "Roofline: an insightful visual performance model" (2009).
    """

    id = "slow-operation"
    title = "Find another form for what takes many times what it needs"

    minimum_share = Limit(0.05, "share", "A heuristic has to concern a good part of the step.")
    minimum_times = Limit(
        4.0,
        "ratio",
        "Healthy operations, as XLA's compiler schedules them, take up to three times.",
    )
    least_part = Limit(0.1, "share", "Of the step, for one operation. Small ones have fixed costs.")

    noun = "operation"
    changes = ("another-form",)

    def faster(self, signals: Signals) -> Sequence[FasterOperation]:
        """The operations, with what they need."""
        faster = []
        for one in self._slow(signals):
            now = mean_ns(signals, one.operation)
            beyond = now - one.needed_ns
            expected, worst = (0.5, 0.25) if now >= 10 * one.needed_ns else (0.25, 0.0)
            faster.append(
                FasterOperation(
                    one.operation, now - expected * beyond, one.needed_ns, now - worst * beyond
                )
            )
        return faster

    def describe(self, signals: Signals, cost: str) -> tuple[str, str]:
        """The slowest operation, and what the program says that it computes."""
        found = self._slow(signals)
        worst = max(found, key=lambda one: total_ns(signals, [one.operation]))
        rate = worst.needed_ns / max(mean_ns(signals, worst.operation), 1.0)
        return f"{worst.operation.name} at {format_share(rate)} of its rate", (
            f"{cost} goes into {_counted(len(found))} what the work"
            f" needs. {worst.operation.name} reaches {format_share(rate)} of its achievable rate:"
            f" it computes {described(worst)}."
        )

    def _slow(self, signals: Signals) -> list[OperationNeeds]:
        least_ns = self.least_part * signals.attribution.window_ns
        return [
            one
            for one in operation_needs(signals)
            if mean_ns(signals, one.operation) > self.minimum_times * one.needed_ns
            and total_ns(signals, [one.operation]) >= least_ns
        ]


def _counted(operations: int) -> str:
    if operations == 1:
        return "an operation that takes several times"
    return f"{operations} operations that take several times"
