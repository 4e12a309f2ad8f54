"""Gradients as large as a table of which a step reads few rows."""

from __future__ import annotations

from tb_perfadvisor.machine.facts import Observed
from tb_perfadvisor.rules.examined_operators import ExaminedOperators, Parts, place_of_observed
from tb_perfadvisor.rules.finding import Column
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.units import format_share


class DenseTableGradients(ExaminedOperators):
    """The gradient of an embedding has all rows of its table, although the step reads few of them.

    What it finds
    -------------
    In a PyTorch program, embeddings of a thousand rows or more of which a step reads at
    most a quarter, and whose gradient and update go through all rows.

    Why it matters
    --------------
    A dense gradient is filled with zeros first, and the optimizer then reads and writes each row of
    the table and of its own state. A sparse gradient has only the rows that were read.

    How it is measured
    ------------------
    The rows that a step reads are counted in steps that `perfadvisor run` looked at. What goes is
    the part of the other rows, of the time of the gradient and of the update: expected nine tenths
    of that, at least half. High adds half as much, for memory that is no longer taken and given
    back in each step.

    When to ignore
    --------------
    When the optimizer has no sparse form, or weight decay must shrink all rows in every step.
    SparseAdam changes only the rows that were read, also in its moments.

    How to verify
    -------------
    `aten::embedding_dense_backward` is gone from the profile, and the optimizer's step is short.

    References:
    ----------
    PyTorch documentation, `torch.nn.Embedding(sparse=True)` and `torch.optim.SparseAdam`.
    """

    id = "dense-table-gradients"
    title = "Update only the rows of the table that were read"
    kinds = ("few rows",)
    changes = ("sparse-gradients",)
    amount = Column("rows", "Rows read", "share")

    def parts(self, observed: Observed, signals: Signals) -> Parts:
        """What the other rows take."""
        others = 1 - observed.amount
        return 0.5 * others, 0.9 * others, 1.4 * others

    def describe(self, observed: Observed, cost: str) -> str:
        """How many rows are read."""
        return (
            f"{cost} goes into gradients and updates of all rows of embeddings, although a step"
            f" reads at most {format_share(observed.amount)} of them:"
            f" {place_of_observed(observed)}. With sparse gradients, only those rows change."
        )
