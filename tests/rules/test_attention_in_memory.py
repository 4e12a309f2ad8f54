from __future__ import annotations

import pytest

from tb_perfadvisor.rules.compute.attention_in_memory import AttentionInMemory
from tb_perfadvisor.testing import check_rule, find
from tests.support.examined import observed, program


@pytest.mark.parametrize("is_averaged", [False, True])
def test_saves_its_part_of_the_time(is_averaged: bool) -> None:
    checked = check_rule(
        AttentionInMemory,
        slow=program(observed("unfused attention", 0.5, float(is_averaged))),
        fixed=program(step_ms=7.6),
        saves="2.4ms",
        exactly=False,
    )
    (finding,) = checked.findings
    snippets = [remedy.snippet for remedy in finding.remedies]
    assert ("need_weights=False" in snippets[0]) is is_averaged
    assert "scaled_dot_product_attention" in snippets[-1]


def test_just_below_and_just_above_the_limit() -> None:
    assert find(AttentionInMemory, program(observed("unfused attention", 0.10, 0.0))) == ()
    assert find(AttentionInMemory, program(observed("unfused attention", 0.11, 0.0)))
