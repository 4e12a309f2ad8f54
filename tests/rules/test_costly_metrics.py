from __future__ import annotations

import pytest

from tb_perfadvisor.rules.compute.costly_metrics import CostlyMetrics
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.testing.symbols import operator

SCOPE = "StatefulPartitionedCall/perfadvisor_metrics"
SLOW = """
    cell 1ms
    step |..........|..........|
    main |.fffggmmm.|.fffggmmm.|
"""
FIXED = """
    cell 1ms
    step |.......|.......|
    main |.fffgg.|.fffgg.|
"""


def legend(name: str) -> dict[str, object]:
    return {
        "f": operator("StatefulPartitionedCall/dense/MatMul:MatMul", launches=False),
        "g": operator("StatefulPartitionedCall/gradient_tape/MatMul:MatMul", launches=False),
        "m": operator(name, launches=False),
    }


def test_saves_most_of_their_time() -> None:
    checked = check_rule(
        CostlyMetrics,
        slow=SLOW,
        fixed=FIXED,
        saves="3ms",
        legend=legend(f"{SCOPE}/Greater:Greater"),
        framework="tensorflow",
        exactly=False,
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    # 70 % of 3 ms in each of two steps.
    assert finding.saving.expected_ns == 4_200_000


@pytest.mark.parametrize("name", ["StatefulPartitionedCall/Greater:Greater", "Greater"])
def test_other_comparisons_are_fine(name: str) -> None:
    assert find(CostlyMetrics, SLOW, legend=legend(name), framework="tensorflow") == ()


def test_just_below_and_just_above_the_limit() -> None:
    # 3 of 10 ms.
    names = legend(f"{SCOPE}/Greater:Greater")
    for limit, is_found in ((0.31, False), (0.29, True)):
        settings = {"minimum_share": limit}
        found = find(CostlyMetrics, SLOW, legend=names, framework="tensorflow", settings=settings)
        assert bool(found) == is_found
