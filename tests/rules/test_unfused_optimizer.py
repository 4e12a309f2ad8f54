from __future__ import annotations

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
