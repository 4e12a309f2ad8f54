from __future__ import annotations

import pytest

from tb_perfadvisor.rules.precision.wide_numbers import DoublePrecisionProgram
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.testing.symbols import Symbol
from tb_perfadvisor.trace import EventKind

DOT = "%dot.3 = f64[256,1024]{1,0} dot(f64[256,512]{1,0} %x, f64[512,1024]{1,0} %w)"
ON_CPU = {"m": Symbol(EventKind.OPERATOR, "dot.3", hlo={"text": DOT})}
NARROW = {"m": Symbol(EventKind.OPERATOR, "dot.3", hlo={"text": DOT.replace("f64", "f32")})}
SLOW = """
    cell 1ms
    step |..........|..........|
    main |.mmmmmmmm.|.mmmmmmmm.|
"""
FIXED = """
    cell 1ms
    step |......|......|
    main |.nnnn.|.nnnn.|
"""


def test_saves_half_of_the_time() -> None:
    checked = check_rule(
        DoublePrecisionProgram,
        slow=SLOW,
        fixed=FIXED,
        saves="4ms",
        legend={**ON_CPU, "n": NARROW["m"]},
        framework="jax",
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    # Of 8 ms in each of two steps.
    assert finding.saving.low_ns == 4_000_000
    assert finding.saving.expected_ns == 8_000_000
    assert finding.saving.high_ns == 12_000_000


@pytest.mark.parametrize("text", [DOT.replace("f64", "f32"), DOT.replace(" dot(", " add(")])
def test_narrow_products_and_wide_sums_are_left_alone(text: str) -> None:
    legend = {"m": Symbol(EventKind.OPERATOR, "dot.3", hlo={"text": text})}
    assert find(DoublePrecisionProgram, SLOW, legend=legend, framework="jax") == ()


@pytest.mark.parametrize(
    ("path", "is_lossy"),
    [
        ("jit(step)/transpose(jvp())/dot_general", False),
        # A simulation, and a fit that solves normal equations.
        ("jit(step)/dot_general", True),
        ("jit(step)/transpose(jvp(jit(solve)))/lu", True),
    ],
)
def test_training_a_network_loses_nothing_in_32_bits(path: str, is_lossy: bool) -> None:
    legend = {"m": Symbol(EventKind.OPERATOR, "dot.3", hlo={"text": DOT, "path": path})}
    (finding,) = find(DoublePrecisionProgram, SLOW, legend=legend, framework="jax") or ()
    assert finding.is_lossy == is_lossy
