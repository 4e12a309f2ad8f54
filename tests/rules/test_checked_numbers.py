from __future__ import annotations

import pytest

from tb_perfadvisor.rules.launch.switched_on import CheckedNumbers
from tb_perfadvisor.testing import TraceBuilder, check_rule, find, us
from tb_perfadvisor.trace import Trace


def steps(check: str | None, *, layers: int = 10) -> Trace:
    """Three steps: each layer takes 20 µs, its check another 20 of which 10 are work."""
    builder = TraceBuilder("tensorflow")
    length = 20 if check is None else 40
    for step in range(3):
        begun = step * layers * length
        for number in range(layers):
            at = begun + number * length
            builder.operator(f"layer_{number}/MatMul:MatMul", us(at), us(at + 20))
            if check is not None:
                builder.operator(f"layer_{number}/{check}:{check}", us(at + 25), us(at + 35))
        builder.step(step, us(begun), us(begun + layers * length))
    return builder.build()


@pytest.mark.parametrize("check", ["CheckNumericsV2", "DebugNumericSummaryV2"])
def test_checks_cost_their_share_of_operators(check: str) -> None:
    checked = check_rule(
        CheckedNumbers, slow=steps(check), fixed=steps(None), saves="200us", exactly=False
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    saving = finding.saving
    assert (saving.low_ns, saving.expected_ns, saving.high_ns) == (
        *(3 * 100_000, 3 * 200_000, 3 * 340_000),
    )
    assert finding.summary == (
        "50.0 % of all operators look for infinities and NaNs in what others return (10 checks per"
        " step)."
    )


def test_checks_of_the_program_itself_are_fine() -> None:
    assert find(CheckedNumbers, steps("CheckNumerics")) == ()


def test_a_few_are_not_enough() -> None:
    assert find(CheckedNumbers, steps("CheckNumericsV2", layers=6)) == ()
    assert len(find(CheckedNumbers, steps("CheckNumericsV2", layers=7)) or ()) == 1
