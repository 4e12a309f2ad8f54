"""Products of numbers too small for the usual form of floating-point numbers."""

from __future__ import annotations

from typing import Final

from tb_perfadvisor.machine.facts import Observed
from tb_perfadvisor.rules.examined_operators import ExaminedOperators, Parts, place_of_observed
from tb_perfadvisor.rules.finding import Column
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.units import format_share

_TIMES: Final = (20, 60, 240)
"""How much longer an operator would take if all elements of an input were subnormal: at least, as
expected, and at most. With PyTorch 2.13 on one core of a Xeon with AMX, a convolution took 68 and a
product 237 times as long, and with fewer of them in proportion: 1.5 and 3.4 times with 1 %."""


class SubnormalNumbers(ExaminedOperators):
    """The CPU multiplies numbers that are nearly zero, which takes many times as long.

    What it finds
    -------------
    In a PyTorch program on the CPU, products and convolutions with an input of which 0.2 % or more
    is subnormal: not zero, and in 32 bits smaller than 1.2e-38. Values that decay from step to
    step become such.

    Why it matters
    --------------
    Processors compute with these numbers in microcode: one takes a hundred cycles and more, where a
    vector of others takes one. To a sum with usual numbers they add nothing.

    How it is measured
    ------------------
    The share is that of 4,096 elements drawn at random in steps that `perfadvisor run` looked at.
    An operator is expected to take 1 + 60 times that share as long as it would without them; low is
    1 + 20 times, high 1 + 240 times, which products of matrices reached. Products of the backward
    pass with the same input count as well.

    When to ignore
    --------------
    When numbers below 1e-38 matter to the results.

    How to verify
    -------------
    The operators take a fraction of the time, and the losses agree.

    References:
    ----------
    PyTorch documentation, `torch.set_flush_denormal`; Dooley and Kale, "Quantifying the
    interference caused by subnormal floating-point values" (2006).
    """

    id = "subnormal-numbers"
    title = "Take numbers that are nearly zero for zero"
    kinds = ("subnormal",)
    changes = ("flush-subnormals",)
    amount = Column("subnormal", "Nearly zero", "share")

    def parts(self, observed: Observed, signals: Signals) -> Parts:
        """What is left without them, by their share."""
        low, expected, high = (1 - 1 / (1 + times * min(observed.amount, 1.0)) for times in _TIMES)
        return low, expected, high

    def describe(self, observed: Observed, cost: str) -> str:
        """How many there are."""
        return (
            f"{cost} goes into operators of which an input has numbers that are nearly zero"
            f" ({format_share(observed.amount)} of them): {observed.operator} of {observed.shapes}"
            f" in {place_of_observed(observed)}. Each of these numbers takes as long as hundreds of"
            " others."
        )
