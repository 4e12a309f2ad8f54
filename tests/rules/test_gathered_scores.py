from __future__ import annotations

from msgspec.structs import replace

from tb_perfadvisor.machine.facts import Examined, Facts, Observed
from tb_perfadvisor.rules.compute.gathered_scores import GatheredScores
from tb_perfadvisor.testing import check_rule, draw, find
from tb_perfadvisor.testing.symbols import operator
from tb_perfadvisor.trace import Trace

SLOW = """
    cell 1ms
    step |...........|...........|
    main |.hmmmggggg.|.hmmmggggg.|
"""
FIXED = """
    cell 1ms
    step |.....|.....|
    main |.h.x.|.h.x.|
"""


def trace(drawing: str = SLOW, *, read: float = 0.005) -> Trace:
    legend = {
        "h": operator("matmul:MatMul", launches=False),
        "m": operator("MatMul_2:MatMul", launches=False),
        "g": operator("gradient_tape/MatMul_2/MatMul_1:MatMul", launches=False),
        "x": operator("Einsum:Einsum", launches=False),
    }
    found = tuple(
        Observed(
            *("gathered product", name, "baskets.py", 52, 0.0, "score"),
            shapes="64 x 8000",
            amount=read,
        )
        for name in ("MatMul_2", "gradient_tape/MatMul_2/MatMul_1")
    )
    facts = Facts(examined=Examined(1, 1.0, 10, observed=found))
    return replace(draw(drawing, legend=legend, framework="tensorflow"), facts=facts)


def test_only_what_is_gathered_is_multiplied() -> None:
    checked = check_rule(
        GatheredScores, slow=trace(), fixed=trace(FIXED), saves="6ms", exactly=False
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    # 85 % of what is not read of 8 ms in each of two steps.
    assert finding.saving.expected_ns == int(0.85 * 0.995 * 16_000_000)
    assert finding.instance == "64 x 8000 in baskets.py:52 score"


def test_products_of_which_much_is_read_are_fine() -> None:
    assert find(GatheredScores, trace(read=0.3)) == ()
