from __future__ import annotations

import pytest
from msgspec.structs import replace

from tb_perfadvisor.machine.facts import Examined, Facts, Observed
from tb_perfadvisor.rules.compute.one_hot_lookup import OneHotLookup
from tb_perfadvisor.testing import check_rule, draw, find
from tb_perfadvisor.testing.symbols import operator
from tb_perfadvisor.trace import Trace

SLOW = """
    cell 1ms
    step |..........|..........|
    main |.ffmmmmgg.|.ffmmmmgg.|
"""
FIXED = """
    cell 1ms
    step |......|......|
    main |.ffgg.|.ffgg.|
"""
NAMES = ("MatMul", "StatefulPartitionedCall/MatMul")


def trace(drawing: str = SLOW, *, name: str = "MatMul", rows: float = 1500) -> Trace:
    legend = {
        "f": operator("Gather:ResourceGather", launches=False),
        "m": operator(f"{name}:MatMul", launches=False),
        "g": operator("gradient_tape/logistic_loss/mul:Mul", launches=False),
    }
    found = Observed("one-hot", "MatMul", "vectors.py", 12, 0.0, "context", amount=rows)
    facts = Facts(examined=Examined(1, 1.0, 10, observed=(found,)))
    return replace(draw(drawing, legend=legend, framework="tensorflow"), facts=facts)


@pytest.mark.parametrize("name", NAMES)
def test_a_gather_takes_the_place_of_the_product(name: str) -> None:
    checked = check_rule(
        OneHotLookup,
        slow=trace(name=name),
        fixed=trace(FIXED),
        saves="4ms",
        exactly=False,
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    # 85 % of 4 ms in each of two steps.
    assert finding.saving.expected_ns == 6_800_000
    assert finding.instance == "a table of 1,500 rows in vectors.py:12 context"


def test_other_products_and_small_tables_are_fine() -> None:
    assert find(OneHotLookup, trace(name="dense/MatMul_1")) == ()
    assert find(OneHotLookup, trace(rows=200)) == ()
