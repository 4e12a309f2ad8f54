from __future__ import annotations

from collections.abc import Sequence

import pytest

from tb_perfadvisor.rules.launch.eager import ManyTinyOperators
from tb_perfadvisor.rules.launch.optimizer import OptimizerLoop
from tb_perfadvisor.testing import TraceBuilder, check_rule, find
from tb_perfadvisor.testing.builder import us
from tb_perfadvisor.trace import Trace

ADAM = ["aten::lerp_", "aten::mul_", "aten::addcmul_", "aten::sqrt", "aten::addcdiv_"] * 20
WORK_US, EVERY_US = 4000, 20


def program(names: Sequence[str], optimizer: str = "Adam", method: str = "step") -> Trace:
    """Two steps on the CPU: 4 ms of work, then the optimizer's operators, one every 20 us."""
    builder = TraceBuilder()
    length = WORK_US + EVERY_US * len(names)
    for number in range(2):
        start = number * length
        builder.step(number, us(start), us(start + length))
        builder.operator("aten::mm", us(start), us(start + WORK_US), launches=False)
        label = f"Optimizer.{method}#{optimizer}.{method}"
        builder.annotation(label, us(start + WORK_US), us(start + length))
        for place, name in enumerate(names):
            at = start + WORK_US + EVERY_US * place
            builder.operator(name, us(at), us(at + 15), launches=False)
    return builder.build()


def test_saves_what_the_fused_form_saves() -> None:
    # 100 operators every 20 us take 2000 us. Fused: 25 operators' time, 500 us.
    checked = check_rule(
        OptimizerLoop,
        slow=program(ADAM),
        fixed=program(["aten::_fused_adam_"] * 25),
        saves="1500us",
        exactly=False,
        scales=False,  # the cost of recording stays
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    # Recording 100 operators and the annotation costs 0.6 us each.
    own_us = 2000 - 101 * 0.6
    assert finding.saving.expected_ns == int(0.75 * 2 * us(1) * own_us)
    assert finding.saving.high_ns == int(0.9 * 2 * us(2000))
    assert "goes into 100 operators" in finding.summary
    assert "fused=True" in finding.remedies[0].snippet


@pytest.mark.parametrize(
    ("optimizer", "names", "is_found"),
    [
        ("AdamW", ADAM, True),
        ("Adagrad", ADAM, True),
        ("SGD", ["aten::mul_", "aten::add_"] * 40, True),
        ("SGD", ["aten::add_"] * 80, False),  # without momentum, fused takes as long
        ("RMSprop", ADAM, False),  # has no fused form
        ("Lion", ADAM, False),
    ],
)
def test_only_optimizers_whose_fused_form_is_faster(
    optimizer: str, names: list[str], is_found: bool
) -> None:
    assert bool(find(OptimizerLoop, program(names, optimizer))) == is_found


def test_other_methods_are_left_alone() -> None:
    assert find(OptimizerLoop, program(ADAM, method="zero_grad")) == ()


def test_no_other_rule_prices_the_same_loop() -> None:
    assert find(ManyTinyOperators, program(ADAM)) == ()
    assert find(ManyTinyOperators, program(["aten::add_"] * 80, "SGD")) == ()
    assert find(ManyTinyOperators, program(ADAM, "Lion"))


def test_programs_with_a_device_are_left_to_unfused_optimizer() -> None:
    builder = TraceBuilder()
    builder.step(0, us(0), us(1000))
    builder.annotation("Optimizer.step#Adam.step", us(0), us(1000))
    for place in range(40):
        builder.operator("aten::mul_", us(20 * place), us(20 * place + 15))
        builder.kernel("mul", us(20 * place), us(20 * place + 10))
    assert find(OptimizerLoop, builder.build()) == ()


def test_just_below_and_just_above_the_limit() -> None:
    # Expected: 0.75 x (2000 - 60.6) of 6000 us = 24.2 %.
    assert find(OptimizerLoop, program(ADAM), settings={"minimum_share": 0.245}) == ()
    assert find(OptimizerLoop, program(ADAM), settings={"minimum_share": 0.24})
