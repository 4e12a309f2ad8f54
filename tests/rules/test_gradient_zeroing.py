from __future__ import annotations

from pathlib import Path

from tb_perfadvisor import analyze
from tb_perfadvisor.rules.launch.optimizer import GradientZeroing
from tb_perfadvisor.testing import TraceBuilder, check_rule, find
from tb_perfadvisor.testing.builder import us
from tb_perfadvisor.trace import KernelFamily, Trace

FILL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>"


def step(gradients: int, name: str = "Optimizer.zero_grad#SGD.zero_grad") -> Trace:
    """Two steps: filling each gradient takes 20 us on the host, and 200 us of work follow."""
    builder = TraceBuilder()
    length = 20 * gradients + 200
    for number in range(2):
        start = number * length
        builder.step(number, us(start), us(start + length))
        if gradients:
            builder.annotation(name, us(start), us(start + 20 * gradients))
        for gradient in range(gradients):
            at = start + 20 * gradient
            builder.operator("aten::zero_", us(at), us(at + 20))
            builder.operator("aten::fill_", us(at), us(at + 20))
            builder.kernel(FILL, us(at + 5), us(at + 20), family=KernelFamily.ELEMENTWISE)
        builder.operator("aten::mm", us(start + length - 200), us(start + length))
        builder.kernel("sgemm", us(start + length - 200), us(start + length))
    return builder.build()


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(GradientZeroing, slow=step(20), fixed=step(0), saves="400us")
    assert "20 fills per step" in checked.findings[0].summary


def test_a_few_gradients_are_left_alone() -> None:
    assert find(GradientZeroing, step(9)) == ()
    assert len(find(GradientZeroing, step(10)) or ()) == 1


def test_fills_outside_zero_grad_are_left_alone() -> None:
    assert find(GradientZeroing, step(20, "Optimizer.step#SGD.step")) == ()


def test_just_below_and_just_above_the_limit() -> None:
    # 400 of 600 us.
    assert find(GradientZeroing, step(20), settings={"minimum_share": 0.67}) == ()
    assert len(find(GradientZeroing, step(20), settings={"minimum_share": 0.66}) or ()) == 1


def test_recorded_zeroing_of_an_old_pytorch(corpus: Path) -> None:
    # PyTorch 1.9: ResNet-50 has 161 parameters, and set_to_none was False.
    report = analyze(corpus / "kineto" / "resnet50_num_workers_0")
    (finding,) = [item for item in report.findings if item.rule_id == "gradient-zeroing"]
    assert "161 fills per step" in finding.summary
