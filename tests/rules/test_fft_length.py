from __future__ import annotations

import pytest

from tb_perfadvisor.rules.xla.fft_length import FftLength, largest_prime_factor
from tb_perfadvisor.testing import check_rule, draw, find
from tb_perfadvisor.testing.symbols import Symbol
from tb_perfadvisor.trace import EventKind, Trace

SLOW = """
    cell 1ms
    step |..........|..........|
    main |.ffffffff.|.ffffffff.|
"""
FIXED = """
    cell 1ms
    step |....|....|
    main |.ff.|.ff.|
"""
FORWARD = "%fft.2 = c64[8,{half}]{{1,0}} fft(f32[8,{n}]{{1,0}} %x), fft_type=RFFT"
BACKWARD = "%fft.2 = f32[8,{n}]{{1,0}} fft(c64[8,{half}]{{1,0}} %x), fft_type=IRFFT"
COMPLEX = "%fft.2 = c64[8,{n}]{{1,0}} fft(c64[8,{n}]{{1,0}} %x), fft_type=FFT"


def trace(length: int, text: str = FORWARD, drawing: str = SLOW) -> Trace:
    hlo = {
        "text": text.format(n=length, half=length // 2 + 1),
        "module": "jit_step",
        "source_line": "model.py:37",
    }
    symbols = {"f": Symbol(EventKind.OPERATOR, "fft.2", hlo=hlo)}
    return draw(drawing, legend=symbols, framework="jax")


@pytest.mark.parametrize("text", [FORWARD, BACKWARD, COMPLEX])
def test_a_prime_number_of_elements(text: str) -> None:
    checked = check_rule(
        FftLength,
        slow=trace(1999, text),
        fixed=trace(2048, text, FIXED),
        scales=False,
        exactly=False,
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    # One transform of 2,048 elements instead of two of 4,096.
    kept = 2048 * 11 / (2 * 4096 * 12)
    assert finding.saving.expected_ns == pytest.approx(2 * 8e6 * (1 - kept), rel=0.001)
    assert finding.saving.low_ns == pytest.approx(2 * 8e6 * 0.3, rel=0.001)
    assert finding.instance == "1,999 elements (model.py:37)"


@pytest.mark.parametrize("length", [1, 360, 1000, 2048, 49 * 11])
def test_small_factors_are_fine(length: int) -> None:
    assert find(FftLength, trace(length)) == ()


def test_a_multiple_of_a_large_prime() -> None:
    (finding,) = find(FftLength, trace(2 * 997)) or ()
    assert "a multiple of 997" in finding.summary


@pytest.mark.parametrize(
    ("number", "factor"), [(1, 1), (2, 2), (97, 97), (96, 3), (1999, 1999), (2 * 53 * 53, 53)]
)
def test_factors(number: int, factor: int) -> None:
    assert largest_prime_factor(number) == factor
