from __future__ import annotations

from pathlib import Path

import pytest

from tb_perfadvisor.api import analyze
from tb_perfadvisor.rules.launch.launching import LaunchBound
from tb_perfadvisor.rules.launch.optimizer import UnfusedOptimizer
from tb_perfadvisor.testing import TraceBuilder, check_rule, find
from tb_perfadvisor.testing.builder import us
from tb_perfadvisor.testing.symbols import kernel
from tb_perfadvisor.trace import KernelFamily, Trace

# Each of 20 operators launches its kernel 10 us after its start. The kernel takes 10 us, so
# the device idles half of the time.
PARAMETERS = 20
UPDATE = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"


def step(operator: str = "aten::addcdiv_", calls: int = PARAMETERS) -> Trace:
    """Two steps: 100 us of work, then the optimizer's calls of 20 us each."""
    builder = TraceBuilder()
    length = 100 + 20 * calls
    symbol = kernel(UPDATE, family=KernelFamily.ELEMENTWISE)
    for number in range(2):
        start = number * length
        builder.step(number, us(start), us(start + length))
        builder.operator("aten::mm", us(start), us(start + 100))
        builder.kernel("sgemm", us(start), us(start + 100))
        name = "Optimizer.step#AdamW.step"
        builder.annotation(name, us(start + 100), us(start + length))
        for call in range(calls):
            at = start + 100 + 20 * call
            builder.operator(operator, us(at), us(at + 20))
            builder.add(symbol, us(at + 10), us(at + 20), stream=7)
    return builder.build()


def test_saves_what_the_fix_saves() -> None:
    # One call of 20 us instead of twenty saves 380 us, of which 190 are idle. The kernels of
    # 10 us also become one; high counts half of them: 200 + 100.
    checked = check_rule(
        UnfusedOptimizer,
        slow=step(),
        fixed=step("aten::_fused_adamw_", calls=1),
        saves="380us",
        tolerance=0.25,
        exactly=False,
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    assert finding.saving.high_ns == 2 * (us(200) + us(100))
    assert "20 launches per step" in finding.summary


def test_launch_bound_does_not_count_it_again() -> None:
    assert find(LaunchBound, step()) == ()


def test_lists_of_tensors_are_not_a_loop() -> None:
    assert find(UnfusedOptimizer, step("aten::_foreach_addcdiv_")) == ()


def test_a_few_parameters_are_left_alone() -> None:
    assert find(UnfusedOptimizer, step(calls=9)) == ()
    assert len(find(UnfusedOptimizer, step(calls=10)) or ()) == 1


def update(kernels: int, name: str = UPDATE) -> Trace:
    """Three steps: 100 us of a product, then kernels of 4 us, each 1 us after the one before.

    Their launches are all that is recorded of the host.
    """
    builder = TraceBuilder()
    length = 100 + 5 * kernels + 5
    for number in range(3):
        start = number * length
        builder.step(number, us(start), us(start + length))
        builder.launch(us(start), us(start + 1), key=f"{number}")
        builder.kernel("sgemm", us(start), us(start + 100), launched_by=f"{number}")
        for place in range(kernels):
            at = start + 100 + 5 * place
            builder.launch(us(at), us(at + 1), key=f"{number}-{place}")
            builder.add(
                kernel(name, family=KernelFamily.ELEMENTWISE), us(at + 1), us(at + 5), stream=7
            )
    return builder.build()


def test_an_optimizer_of_the_program_s_own_is_found_by_its_kernels() -> None:
    (finding,) = find(UnfusedOptimizer, update(120)) or ()
    # 120 of 121 launches, and 600 of 705 us.
    assert finding.summary == (
        "600 µs of each step (85.1 %) and 99.2 % of what is launched goes into elementwise kernels"
        " that end each step, tensor by tensor, as of an optimizer that updates one parameter after"
        " the other (120 launches per step)."
    )
    assert finding.saving is not None
    # 0.4, 0.65 and 0.85 of 3 * 600 us.
    saving = finding.saving
    assert (saving.low_ns, saving.expected_ns, saving.high_ns) == (us(720), us(1170), us(1530))
    assert any("Compile the step of the optimizer" in remedy.text for remedy in finding.remedies)


@pytest.mark.parametrize(
    "trace", [update(99), update(120, "multi_tensor_apply_kernel<FusedAdamMathFunctor>")]
)
def test_few_kernels_and_those_of_lists_are_no_loop(trace: Trace) -> None:
    assert find(UnfusedOptimizer, trace) == ()


def test_just_below_and_just_above_the_limit() -> None:
    # 200 of 500 us are idle in the optimizer.
    assert find(UnfusedOptimizer, step(), settings={"minimum_share": 0.41}) == ()
    assert len(find(UnfusedOptimizer, step(), settings={"minimum_share": 0.39}) or ()) == 1


def test_finds_a_recorded_loop(corpus: Path) -> None:
    # SGD over 404 parameters: 2020 aten::add_ in five calls of Optimizer.step, none _foreach_.
    report = analyze(corpus / "hta" / "df_index_resolver")
    (finding,) = [item for item in report.findings if item.rule_id == "unfused-optimizer"]
    assert "404 launches per step" in finding.summary
    assert finding.saving is not None
    assert finding.saving.share_expected == pytest.approx(0.02, abs=0.01)
