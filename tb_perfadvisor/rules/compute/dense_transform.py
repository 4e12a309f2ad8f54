"""Spectra computed by products with sines and cosines, on the CPU."""

from __future__ import annotations

from tb_perfadvisor.machine.facts import Observed
from tb_perfadvisor.rules.examined_operators import ExaminedOperators, place_of_observed
from tb_perfadvisor.rules.finding import Column
from tb_perfadvisor.units import format_share


class DenseTransform(ExaminedOperators):
    """A product with a table of waves computes a spectrum.

    What it finds
    -------------
    In a PyTorch program, products and convolutions with a fixed matrix whose columns or
    rows are waves at evenly spaced frequencies, with or without a window: spectrograms, cosine
    transforms, spectral methods.

    Why it matters
    --------------
    The product multiplies each of n numbers with each of n waves. A fast Fourier transform gets the
    same in about n log n steps.

    How it is measured
    ------------------
    `perfadvisor run` looks at the matrix: each sampled column has its energy at one frequency, and
    the frequencies are in proportion to the columns' numbers. Expected is 90 % of the time of the
    products beyond what a transform takes by a model of 3 ns for each number and 0.4 ns for each
    doubling of the length, measured on one x86 core. High is 120 %, for the copies of overlapping
    frames. Low is 60 % of it, or half of
    that on a device, whose speed is not known.

    When to ignore
    --------------
    When few frequencies of a long signal are needed, or when the waves are to be learned.

    How to verify
    -------------
    The profile shows `aten::_fft_r2c` in place of the products, and the spectra are the same up to
    rounding.

    References:
    ----------
    Cooley and Tukey, "An Algorithm for the Machine Calculation of Complex Fourier Series" (1965);
    PyTorch documentation, `torch.fft.rfft` and `torch.stft`.
    """

    id = "dense-transform"
    title = "Compute spectra with a fast Fourier transform"
    kinds = ("dense transform",)
    changes = ("fast-transform",)
    amount = Column("kept", "A transform takes", "share")
    spares = (0.6, 0.9, 1.2)

    def describe(self, observed: Observed, cost: str) -> str:
        """What the product computes."""
        return (
            f"{cost} goes into products with tables of waves: {observed.operator} of"
            f" {observed.shapes} in {place_of_observed(observed)} computes a spectrum. A Fourier"
            f" transform takes an estimated {format_share(observed.amount)} of that."
        )
