"""Fourier transforms of lengths with a large prime factor."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2

from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.faster_operations import FasterOperations
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.program.graph import FasterOperation, mean_ns, total_ns
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation, xla_operations

_LARGE_FACTOR = 50
"""Libraries have code for small factors. For larger ones, they convolve: Bluestein's algorithm."""
_INNER_TRANSFORMS = 2
_BEST = 0.8
"""At best, compared with what is expected."""
_WORST = 0.7


class FftLength(FasterOperations):
    """Fourier transforms have a length with a large prime factor.

    What it finds
    -------------
    Transforms of an XLA program on the CPU whose length has a prime factor above 50.

    Why it matters
    --------------
    A transform of n elements takes about n log₂ n operations if n has small factors. For a large
    prime factor, libraries compute a convolution of at least twice the length with two further
    transforms. Where a program pads anyway, as convolutions do, a little more padding avoids that.

    How it is measured
    ------------------
    The transform of the next power of two, of m elements, is expected to take m log₂ m operations,
    where now two transforms of at least 2n elements do: for n = 1,999, a quarter of the time. At
    best it takes a fifth less, and at worst 70 % of the time remains.

    When to ignore
    --------------
    When the spectrum itself is what the program needs, at exactly these frequencies.

    How to verify
    -------------
    The transforms have another length, and take less.

    References:
    ----------
    Bluestein, "A linear filtering approach to the computation of discrete Fourier transform"
    (1970); SciPy documentation, `scipy.fft.next_fast_len`.
    """

    id = "fft-length"
    title = "Transform a length with small factors"

    minimum_share = Limit(0.05, "share", "Padding is not worth it for less of the step.")

    needs = (Need.WORK, Need.XLA_OPERATIONS, Need.CPU_PROGRAM)

    noun = "transform"
    changes = ("pad-transforms",)

    def faster(self, signals: Signals) -> Sequence[FasterOperation]:
        """The transforms, and what those of the next power of two take."""
        faster = []
        for operation, length in _found(signals):
            now = mean_ns(signals, operation)
            expected = now * min(_padded_operations(length) / _operations(length), 1.0)
            best, worst = _BEST * expected, max(expected, _WORST * now)
            faster.append(FasterOperation(operation, expected, best, worst))
        return faster

    def describe(self, signals: Signals, cost: str) -> tuple[str, str]:
        """The costliest length, and its factor."""
        found = _found(signals)
        worst, length = max(found, key=lambda each: total_ns(signals, [each[0]]))
        line = signals.trace.text(int(signals.trace.hlo.source_line[worst.op]))
        where = f" ({line})" if line else ""
        factor = largest_prime_factor(length)
        what = "which is a prime" if factor == length else f"which is a multiple of {factor:,}"
        return f"{length:,} elements{where}", (
            f"{cost} goes into Fourier transforms{where} of {length:,} elements, {what}. The next"
            f" power of two is {_power_of_two(length):,}."
        )


def _found(signals: Signals) -> list[tuple[XlaOperation, int]]:
    found = []
    for operation in xla_operations(signals):
        length = _length(operation) if operation.opcode == "fft" else 1
        if largest_prime_factor(length) > _LARGE_FACTOR:
            found.append((operation, length))
    return found


def _length(operation: XlaOperation) -> int:
    """Of the last dimension. Half of the spectrum of real numbers is stored, so these tell."""
    arrays = (*operation.instruction.operands[:1], *operation.instruction.results[:1])
    real = [each for each in arrays if not each.dtype.startswith("c")]
    whole = next(iter(real or arrays), None)
    return whole.dims[-1] if whole is not None and whole.dims else 1


def largest_prime_factor(number: int) -> int:
    """Of a number of at least 1; 1 has none, and is its own."""
    largest, factor = 1, 2
    while factor * factor <= number:
        while number % factor == 0:
            largest, number = factor, number // factor
        factor += 1
    return max(largest, number)


def _operations(length: int) -> float:
    """By Bluestein's algorithm, whose second factor is transformed in advance."""
    return _INNER_TRANSFORMS * _padded_operations(2 * length - 1)


def _padded_operations(length: int) -> float:
    size = _power_of_two(length)
    return size * max(log2(size), 1.0)


def _power_of_two(length: int) -> int:
    return 1 << (length - 1).bit_length()
