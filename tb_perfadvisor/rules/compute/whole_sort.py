"""Sorts and permutations of many elements of which a few are read, on the CPU."""

from __future__ import annotations

from tb_perfadvisor.machine.facts import Observed
from tb_perfadvisor.rules.examined_operators import ExaminedOperators, Parts, place_of_observed
from tb_perfadvisor.rules.finding import Column
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.units import format_share

_SELECTED = (0.55, 0.75, 0.98)
"""The parts of a sort that selecting saves: low, expected, high. Selecting up to an eighth of 64 to
200,000 numbers took 1 to 24 % of the time of sorting them, with PyTorch 2.13 on one x86 core; a
quarter took 28 to 42 %."""


class WholeSort(ExaminedOperators):
    """The program sorts all elements and reads a few of them.

    What it finds
    -------------
    In a PyTorch program, sorts and permutations of which a quarter or less is read:
    nearest neighbors out of all distances, the best of all scores, a random batch out of all rows.

    Why it matters
    --------------
    A sort compares each element many times. Selecting the smallest or largest few reads each once,
    and drawing a few random numbers reads none.

    How it is measured
    ------------------
    In steps that `perfadvisor run` looked at, each sorted result is followed to the operators that
    read it. Expected is three quarters of the time of these sorts, which selecting the same number
    of elements saved in measurements; low is 55 % of it, or half of that on a
    device, and high nearly all.

    When to ignore
    --------------
    When the order of all elements is used elsewhere, such as in NumPy.

    How to verify
    -------------
    The profile shows `aten::topk` in place of `aten::sort`, in a fraction of the time.

    References:
    ----------
    PyTorch documentation, `torch.topk` and `torch.randint`.
    """

    id = "whole-sort"
    title = "Select the few elements that are read instead of sorting all"
    kinds = ("sorted for few",)
    changes = ("selected-values", "drawn-numbers")
    amount = Column("read", "Read", "share")

    def parts(self, observed: Observed, signals: Signals) -> Parts:
        """What selecting saves."""
        low, expected, high = _SELECTED
        return (low if signals.device.is_host_only else low / 2), expected, high

    def chosen(self, costliest: Observed) -> tuple[str, ...]:
        """A permutation needs no values to select."""
        is_random = costliest.operator == "aten::randperm"
        return self.changes[1:] if is_random else self.changes[:1]

    def describe(self, observed: Observed, cost: str) -> str:
        """How much is read."""
        what = f" of {observed.shapes}" if observed.shapes else ""
        return (
            f"{cost} goes into {observed.operator}{what} in {place_of_observed(observed)}, of whose"
            f" result only {format_share(observed.amount)} is read."
        )
