"""Dense products with matrices of which nearly all elements are zero."""

from __future__ import annotations

from typing import Final

from tb_perfadvisor.machine.facts import Observed
from tb_perfadvisor.rules.examined_operators import ExaminedOperators, Parts, place_of_observed
from tb_perfadvisor.rules.finding import Column
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.units import format_share

_SLOWER: Final = (20, 8, 0)
"""What a sparse product takes for an element that is not zero, in times of a dense one: at most,
as expected, and at least. With PyTorch 2.13 on one core of an AMD EPYC with AVX2, square matrices
of 2,048 to 4,096 rows with 90 to 99.9 % of zeros, multiplied by 16 to 256 columns, took 3 to 15
times as long in compressed rows, and 9 to 49 times in coordinates."""
_SLOWER_ON_GPU: Final = (150, 50, 5)
"""The same with a GPU, whose matrix units take dense data only."""


class MostlyZeroProducts(ExaminedOperators):
    """A dense product multiplies data of which nearly all elements are zero.

    What it finds
    -------------
    In a PyTorch program, matrix products in which 95 % or more of the elements of an
    input are zero: adjacency matrices, one-hot vectors, counts of words. Activations and masks that
    the step computes are left out.

    Why it matters
    --------------
    A dense product takes as long for a zero as for any other number. Stored sparsely, a matrix with
    1 % of its elements costs a tenth or less; a product with one-hot vectors is a look-up.

    How it is measured
    ------------------
    The share of zeros is that of 4,096 elements drawn at random in steps that `perfadvisor run`
    looked at. A sparse product takes eight times as long for each element that is left, which is
    expected; at most 20 times, and at least nothing, with what is between the products. With a GPU,
    it takes 50 times as long, at most 150 times, and at least 5 times. Products
    of the backward pass with the same matrix count as well.

    When to ignore
    --------------
    When the elements that are not zero change too often to convert them.

    How to verify
    -------------
    The dense product is gone from the profile, and its place takes a fraction of its time.

    References:
    ----------
    PyTorch documentation, `torch.sparse` and `torch.nn.Embedding`; Kipf and Welling,
    "Semi-Supervised Classification with Graph Convolutional Networks", section 6.2.
    """

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
