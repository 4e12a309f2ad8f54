"""Products that XLA computes on the CPU in plain loops."""

from __future__ import annotations

from collections.abc import Sequence

from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.faster_operations import FasterOperations
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.program.graph import FasterOperation, mean_ns, total_ns
from tb_perfadvisor.signals.program.slow_products import SlowProduct, slow_products, times_needed

_TIMES_NEEDED = (4.0, 1.0)
"""How many times what a slow product needs another form takes: as expected, and at best."""
_WORST = 0.6
"""What remains at worst."""
_TIMES_OF_INTEGERS = 2.0
"""Loops over integers take at least so many times what a product of floats needs."""


class SlowProductOnCpu(FasterOperations):
    """The CPU computes a product in plain loops, many times slower than it could.

    What it finds
    -------------
    Products and convolutions of an XLA program on the CPU that take ten times what their FLOP and
    bytes need, such as convolutions with one filter for each channel, and products of integers.

    Why it matters
    --------------
    XLA calls fast code for products of floating-point matrices and for convolutions over all
    channels. For other types and forms it makes loops.

    How it is measured
    ------------------
    What a product needs is its FLOP at 40 GFLOP/s on one core, or for convolutions in groups at
    4 GFLOP/s, or its bytes at 4 GB/s, and 20 µs for the call. Expected is four times that, of which
    a sum of shifted products took half in one program, and best is once. At worst, 60 % of the
    time remains. For integers, expected is what a product of 32-bit floats needs, and what makes
    integers of its factors takes half as long.

    When to ignore
    --------------
    When sums of integers exceed 2²⁴ and have to be exact.

    How to verify
    -------------
    The operation is gone, and what replaces it takes less.

    References:
    ----------
    Williams, Waterman, Patterson, "Roofline: an insightful visual performance model" (2009).
    """

    id = "slow-product-on-cpu"
    title = "Multiply in a form that the CPU has fast code for"

    minimum_share = Limit(0.05, "share", "Another form is not worth it for less of the step.")
    minimum_times = Limit(
        10.0, "ratio", "Products of unusual shapes take some times what they need."
    )

    needs = (Need.WORK, Need.XLA_OPERATIONS, Need.PROGRAMS, Need.CPU_PROGRAM)

    noun = "product"

    def faster(self, signals: Signals) -> Sequence[FasterOperation]:
        """The products, and what makes integers of their factors."""
        faster = []
        for one in self._slow(signals):
            now = mean_ns(signals, one.operation)
            expected, best = (min(times * one.needed_ns, now) for times in _TIMES_NEEDED)
            if one.is_of_integers:
                expected = best
            faster.append(
                FasterOperation(one.operation, expected, best, max(expected, _WORST * now))
            )
            for other in one.converted:
                takes = mean_ns(signals, other)
                faster.append(FasterOperation(other, 0.5 * takes, 0.0, takes))
        return faster

    def describe(self, signals: Signals, cost: str) -> tuple[str, str]:
        """The costliest product, and how far it is from what it needs."""
        worst = self._costliest(signals)
        where = f" ({worst.line})" if worst.line else ""
        kind = "a product of integers" if worst.is_of_integers else "a product"
        return f"{worst.operation.name}{where}", (
            f"{cost} goes into products that XLA computes in plain loops. {worst.operation.name} is"
            f" {kind}{where} and takes {times_needed(signals, worst):,.0f} times what its"
            " arithmetic and its bytes need."
        )

    def advice(self, signals: Signals) -> tuple[str, ...]:
        """What replaces the costliest product."""
        worst = self._costliest(signals)
        if worst.is_of_integers:
            return ("multiply-as-floats",)
        return ("shifted-products" if worst.is_in_groups else "another-form",)

    def _costliest(self, signals: Signals) -> SlowProduct:
        return max(self._slow(signals), key=lambda one: total_ns(signals, [one.operation]))

    def _slow(self, signals: Signals) -> list[SlowProduct]:
        return [
            one
            for one in slow_products(signals)
            if times_needed(signals, one)
            >= (_TIMES_OF_INTEGERS if one.is_of_integers else self.minimum_times)
        ]
