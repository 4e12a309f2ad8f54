from __future__ import annotations

from tb_perfadvisor.rules.compute.product_order import ProductOrder
from tb_perfadvisor.testing import check_rule, find
from tests.support.examined import observed, program


def test_saves_its_part_of_the_time() -> None:
    # Of 10 ms, half are spent so, a fifth of it is needed, and 80 % of the rest is expected.
    checked = check_rule(
        ProductOrder,
        slow=program(observed("product order", 0.5, 0.2)),
        fixed=program(step_ms=6.8),
        saves="3200us",
    )
    (finding,) = checked.findings
    assert "takes 20.0 % of the multiplications" in finding.summary


def test_just_below_and_just_above_the_limit() -> None:
    # 5 % of the step: 0.05 / (0.8 * 0.8) = 0.0781 of the operators' time.
    assert find(ProductOrder, program(observed("product order", 0.0775, 0.2))) == ()
    assert find(ProductOrder, program(observed("product order", 0.0788, 0.2)))
