"""Lookups whose reads lie far apart in memory."""

from __future__ import annotations

from tb_perfadvisor.machine.facts import Observed
from tb_perfadvisor.rules.examined_operators import ExaminedOperators, place_of_observed
from tb_perfadvisor.rules.finding import Column
from tb_perfadvisor.units import format_share


class ScatteredReads(ExaminedOperators):
    """A table lies in memory in another order than it is read.

    What it finds
    -------------
    In a PyTorch program, lookups by numbers (`table[:, numbers]`) in a table of 4 MB or more that
    stays the same from step to step, if what belongs to one number is spread over at least twice as
    many cache lines as it would fill: pixels of an image that is stored band by band, for example.

    Why it matters
    --------------
    Memory is read in lines of 64 bytes. If only four of them are used, the lookup reads sixteen
    times as much as it needs, and waits for each line.

    How it is measured
    ------------------
    `perfadvisor run` looks at the strides of the table and at the numbers. Expected is 80 % of the
    lookup's time for the lines that are read in vain. Low is half of it, or a quarter on a device;
    high is all of it.

    When to ignore
    --------------
    When the table does not fit into memory twice, not even for a moment, or is read along the other
    axis just as often.

    How to verify
    -------------
    The lookup takes a fraction of its time.

    References:
    ----------
    Drepper, "What Every Programmer Should Know About Memory" (2007), section 6.2.
    """

    id = "scattered-reads"
    title = "Store the table in the order in which it is read"
    kinds = ("scattered reads",)
    changes = ("table-in-read-order",)
    amount = Column("kept", "Lines that are needed", "share")
    spares = (0.4, 0.8, 1.0)

    def describe(self, observed: Observed, cost: str) -> str:
        """Where, and how many lines."""
        return (
            f"{cost} goes into lookups whose reads lie far apart: {observed.operator} of"
            f" {observed.shapes} in {place_of_observed(observed)}. If what belongs to a number lay"
            f" together, it would read {format_share(observed.amount)} of the cache lines."
        )
