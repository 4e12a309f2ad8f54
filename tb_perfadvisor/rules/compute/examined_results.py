"""Work that a program could do without, by what the tensors of a few steps hold."""

from __future__ import annotations

from typing import Final

from tb_perfadvisor.machine.facts import Observed
from tb_perfadvisor.rules.examined_operators import ExaminedOperators, Parts, place_of_observed
from tb_perfadvisor.rules.finding import Column
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.units import format_share


class RepeatedResults(ExaminedOperators):
    """The program computes again what it has computed before, from the same inputs."""

    id = "repeated-results"
    title = "Compute once what does not change"
    kinds = ("same in every step", "same twice", "same rows")
    look = "repeated results"
    needs = (Need.WORK, Need.HOST_EVENTS, Need.EXAMINED_STEPS)
    changes = ("computed-once", "rows-kept")
    basis = "measured"

    def parts(self, observed: Observed, signals: Signals) -> Parts:
        """All of it: the result is there already."""
        return 0.7, 1.0, 1.3

    def chosen(self, costliest: Observed) -> tuple[str, ...]:
        """Rows can be kept while others are added."""
        return self.changes[1:] if costliest.kind == "same rows" else self.changes[:1]

    def describe(self, observed: Observed, cost: str) -> str:
        why = {
            "same in every step": "depends on nothing that changes from step to step",
            "same twice": "gets the same inputs twice in a step",
            "same rows": "computes all rows of a growing input anew in each step, for one more",
        }[observed.kind]
        return (
            f"{cost} goes into results that are there already. {observed.operator} in"
            f" {place_of_observed(observed)} {why}."
        )


class PaddedSequences(ExaminedOperators):
    """A good part of each batch of sequences is padding."""

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
            f" padding: {observed.shapes}, made or handed to the model in"
            f" {place_of_observed(observed)}."
        )

    def named(self, observed: Observed) -> str:
        """Where the padding comes from: the look-up only meets it first."""
        return place_of_observed(observed)


_SLOWER: Final = (20, 8, 0)
"""What a sparse product takes for an element that is not zero, in times of a dense one: at most,
as expected, and at least. With PyTorch 2.13 on one core of an AMD EPYC with AVX2, square matrices
of 2,048 to 4,096 rows with 90 to 99.9 % of zeros, multiplied by 16 to 256 columns, took 3 to 15
times as long in compressed rows, and 9 to 49 times in coordinates."""
_SLOWER_ON_GPU: Final = (150, 50, 5)
"""The same with a GPU, whose matrix units take dense data only."""


class MostlyZeroProducts(ExaminedOperators):
    """A dense product multiplies data of which nearly all elements are zero."""

    id = "mostly-zero-products"
    title = "Do not multiply by zeros"
    kinds = ("mostly zero",)
    look = "zeros"
    changes = ("sparse-matrix", "rows-gathered")
    amount = Column("zeros", "Zeros", "share")

    def parts(self, observed: Observed, signals: Signals) -> Parts:
        """All but what sparse products take."""
        slower = _SLOWER if signals.device.is_host_only else _SLOWER_ON_GPU
        low, expected, high = (max(1 - times * (1 - observed.amount), 0.0) for times in slower)
        return 0.8 * low, expected, 1.1 * high

    def describe(self, observed: Observed, cost: str) -> str:
        return (
            f"{cost} goes into dense products with data of which at least"
            f" {format_share(observed.amount)} is zero: {observed.operator} of {observed.shapes} in"
            f" {place_of_observed(observed)}. Store that matrix sparsely, or look up rows."
        )


class DroppedGradients(ExaminedOperators):
    """The backward pass computes gradients that are cleared, or kept, without an update."""

    id = "dropped-gradients"
    title = "Stop computing gradients that nothing uses"
    kinds = ("dropped gradients",)
    look = "dropped gradients"
    changes = ("no-unused-gradients",)
    basis = "measured"

    def parts(self, observed: Observed, signals: Signals) -> Parts:
        """All of it."""
        return 0.7, 1.0, 1.25

    def describe(self, observed: Observed, cost: str) -> str:
        return (
            f"{cost} goes into gradients that no update uses, mostly of what"
            f" {place_of_observed(observed)} computes. Detach that result where it is only an"
            " input, or freeze the parameters."
        )


class UnreadResults(ExaminedOperators):
    """A layer computes more than the program needs."""

    id = "unread-results"
    title = "Compute only what is needed"
    kinds = ("unused",)
    look = "unread results"
    changes = ("selected-first", "unread-left-out")
    amount = Column("needed", "Needed", "share")

    def parts(self, observed: Observed, signals: Signals) -> Parts:
        """What is not needed."""
        unread = 1 - observed.amount
        return 0.7 * unread, unread, 1.5 * unread

    def chosen(self, costliest: Observed) -> tuple[str, ...]:
        """What nobody reads goes."""
        return self.changes[:1] if costliest.amount else self.changes[1:]

    def describe(self, observed: Observed, cost: str) -> str:
        needed = f"only {format_share(observed.amount)} is needed" if observed.amount else "none is"
        return (
            f"{cost} goes into {observed.operator} of {observed.shapes} in"
            f" {place_of_observed(observed)} and others, of whose results {needed}."
        )


class RepeatedPageFaults(ExaminedOperators):
    """The allocator gives memory back to the system, and each step takes it again, page by page."""

    id = "repeated-page-faults"
    title = "Keep freed memory for the next results"
    kinds = ("page faults",)
    look = "page faults"
    needs = (*ExaminedOperators.needs, Need.CPU_PROGRAM)
    changes = ("kept-memory",)
    amount = Column("faults", "New pages per step", "count")

    def parts(self, observed: Observed, signals: Signals) -> Parts:
        """About all of it."""
        return 0.6, 1.0, 1.3

    def describe(self, observed: Observed, cost: str) -> str:
        return (
            f"{cost} goes into new pages of memory, which each step gives back and takes again."
            f" Most are for results of {observed.operator} in {place_of_observed(observed)}."
        )
