"""Batches of sequences that end in padding."""

from __future__ import annotations

from tb_perfadvisor.machine.facts import Observed
from tb_perfadvisor.rules.examined_operators import ExaminedOperators, Parts, place_of_observed
from tb_perfadvisor.rules.finding import Column
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.units import format_share


class PaddedSequences(ExaminedOperators):
    """A good part of each batch of sequences is padding.

    What it finds
    -------------
    In a PyTorch program, batches of tokens of which most sequences end in the same token
    again and again, for a tenth of all places or more.

    Why it matters
    --------------
    Layers compute padding like any other token, and attention pairs it with all others.

    How it is measured
    ------------------
    The part of padding is counted in the tokens of steps that `perfadvisor run` looked at. Of the
    operators on sequences of this length, batches of similar lengths would save this part, which is
    expected, and attention its square. Low is 30 % of it, which is what cutting each batch to
    its longest sequence saves if lengths vary a lot.

    When to ignore
    --------------
    When sequences end in the same token because their content does.

    How to verify
    -------------
    The sizes of the batches follow the lengths of the sequences, and the step is shorter.

    References:
    ----------
    Vaswani et al., "Attention Is All You Need", section 5.1, on batches of similar length;
    PyTorch documentation, `torch.nn.utils.rnn.pad_sequence`.
    """

    id = "padded-sequences"
    title = "Cut the padding off the batches"
    kinds = ("padding",)
    look = "padding"
    changes = ("similar-lengths",)
    amount = Column("padding", "Padding", "share")

    def parts(self, observed: Observed, signals: Signals) -> Parts:
        """The padding's part; of attention its square."""
        padding = observed.amount
        return 0.3 * padding, padding, 1 - (1 - padding) ** 2

    def describe(self, observed: Observed, cost: str) -> str:
        return (
            f"{cost} goes into operators on sequences of which {format_share(observed.amount)} is"
            f" padding: {observed.shapes} in {place_of_observed(observed)}."
        )
