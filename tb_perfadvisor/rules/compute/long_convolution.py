"""Convolutions with long kernels that are computed directly."""

from __future__ import annotations

from tb_perfadvisor.machine.facts import Observed
from tb_perfadvisor.rules.examined_operators import ExaminedOperators, place_of_observed
from tb_perfadvisor.rules.finding import Column
from tb_perfadvisor.units import format_share


class LongConvolution(ExaminedOperators):
    """Fourier transforms would convolve faster.

    What it finds
    -------------
    In a PyTorch program, convolutions with 64 taps or more that take much longer than the Fourier
    transforms of their input, their kernel and their result would: responses of rooms, long
    filters, global convolutions.

    Why it matters
    --------------
    A direct convolution multiplies each element with each of n taps. By Fourier transforms, it
    takes about log n steps for each element, whatever the length of the kernel.

    How it is measured
    ------------------
    `perfadvisor run` times the operators of a few steps, with their gradients. Expected is 80 % of
    their time beyond what the transforms take by a model of 3 ns for each number, 0.4 ns for each
    doubling of the length, and 1.5 ns for each complex product, measured on one x86 core. Low is
    half of it, or a quarter on a device, whose speed is not known; high is all of it.

    When to ignore
    --------------
    When the kernel has gaps (dilation) and few taps, or rounding of 1e-6 of the largest value is
    too much for the smallest ones.

    How to verify
    -------------
    The profile shows `aten::_fft_r2c` in place of the convolution.

    References:
    ----------
    Mathieu, Henaff and LeCun, "Fast Training of Convolutional Networks through FFTs" (2013);
    PyTorch documentation, `torch.fft.rfft`.
    """

    id = "long-convolution"
    title = "Convolve with long kernels by Fourier transforms"
    kinds = ("long kernel",)
    changes = ("convolve-by-transforms",)
    amount = Column("kept", "Transforms take", "share")
    spares = (0.4, 0.8, 1.0)

    def describe(self, observed: Observed, cost: str) -> str:
        """How much transforms take."""
        return (
            f"{cost} goes into direct convolutions with long kernels: {observed.shapes} in"
            f" {place_of_observed(observed)}. Fourier transforms take an estimated"
            f" {format_share(observed.amount)} of that."
        )
