"""Results of which the program reads only a part."""

from __future__ import annotations

from tb_perfadvisor.machine.facts import Observed
from tb_perfadvisor.rules.examined_operators import ExaminedOperators, Parts, place_of_observed
from tb_perfadvisor.rules.finding import Column
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.units import format_share


class UnreadResults(ExaminedOperators):
    """A layer computes more than the program reads.

    What it finds
    -------------
    In a PyTorch program, products of which 60 % or less of the result is read, directly
    or behind operators that keep rows apart, and reverse directions of recurrent layers of which
    only the end is read.

    Why it matters
    --------------
    Logits of all positions where the last one is used, or the reverse direction of a layer whose
    first step is all that counts, cost as much as if they were needed. Select first, then compute.

    How it is measured
    ------------------
    In steps that `perfadvisor run` looked at, each result is followed to the operators that read it
    and to how much of it. Expected is the time of the part that is not read; low is 70 % of it, and
    high adds twice as much for the backward pass.

    When to ignore
    --------------
    When something that is no operator reads the rest, such as NumPy.

    How to verify
    -------------
    The operator's input has only the rows that count.

    References:
    ----------
    PyTorch documentation, `torch.nn.LSTM`, on outputs of both directions.
    """

    id = "unread-results"
    title = "Compute only what is read"
    kinds = ("unused",)
    changes = ("selected-first",)
    amount = Column("read", "Read", "share")

    def parts(self, observed: Observed, signals: Signals) -> Parts:
        """What is not read."""
        unread = 1 - observed.amount
        return 0.7 * unread, unread, 3 * unread

    def describe(self, observed: Observed, cost: str) -> str:
        """How much is read."""
        return (
            f"{cost} goes into {observed.operator} of {observed.shapes} in"
            f" {place_of_observed(observed)} and others, of whose results only"
            f" {format_share(observed.amount)} is read."
        )
