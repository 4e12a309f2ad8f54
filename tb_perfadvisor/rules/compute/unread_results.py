"""Results of which the program needs nothing or only a part."""

from __future__ import annotations

from tb_perfadvisor.machine.facts import Observed
from tb_perfadvisor.rules.examined_operators import ExaminedOperators, Parts, place_of_observed
from tb_perfadvisor.rules.finding import Column
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.units import format_share


class UnreadResults(ExaminedOperators):
    """A layer computes more than the program needs.

    What it finds
    -------------
    In a PyTorch program that trains, operators whose result is freed without being read, with what
    only they read: a head that another mode needs, weights of attention that a layer returns as
    well. In any PyTorch program, products, pointwise operators and losses of which 60 % or less
    of the result is needed: the rest is not read, is masked, or belongs to targets that the loss
    ignores. Convolutions over sequences longer than what the places that are read can see. Reverse
    directions of recurrent layers of which only the end is needed.

    Why it matters
    --------------
    Logits of all positions where the last one is used, or where a sixth has a label, cost as much
    as if they were needed. Select first, then compute.

    How it is measured
    ------------------
    In steps that `perfadvisor run` looked at, each result is followed to the operators that read
    it, to how much of it, and through those that keep rows apart. NumPy takes no tensor with a
    gradient, so what has one, and is freed unread, was not needed. Of a sequence, a convolution
    needs as many places more as its kernel is long. Expected is the time of the part that is not
    needed, forward and backward, without what calling the operators takes; low is 70 % of it. High
    is half as much again, for the layers before.

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
    title = "Compute only what is needed"
    kinds = ("unused",)
    look = "unread results"
    changes = ("selected-first", "shorter-context", "unread-left-out")
    amount = Column("needed", "Needed", "share")

    def parts(self, observed: Observed, signals: Signals) -> Parts:
        """What is not needed."""
        unread = 1 - observed.amount
        return 0.7 * unread, unread, 1.5 * unread

    def chosen(self, costliest: Observed) -> tuple[str, ...]:
        """What nobody reads goes. Of a convolution, the input could be shorter."""
        if not costliest.amount:
            return self.changes[2:]
        is_convolution = costliest.operator.startswith("aten::conv")
        return self.changes[1:2] if is_convolution else self.changes[:1]

    def describe(self, observed: Observed, cost: str) -> str:
        needed = f"only {format_share(observed.amount)} is needed" if observed.amount else "none is"
        return (
            f"{cost} goes into {observed.operator} of {observed.shapes} in"
            f" {place_of_observed(observed)} and others, of whose results {needed}."
        )
