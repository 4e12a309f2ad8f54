from __future__ import annotations

import pytest

from tb_perfadvisor.rules.launch.host_work import PythonOverhead
from tb_perfadvisor.rules.launch.launching import LaunchBound, SlowLaunch
from tb_perfadvisor.testing import TraceBuilder, check_rule, find, us
from tb_perfadvisor.trace import CopyDirection, EventKind, Trace

KERNEL = "linear_relu_square_kernel"
"""A Triton kernel of the user in a compiled graph (modded-nanogpt, H100, 2025)."""
COPY = "Memcpy HtoD (Pinned -> Device)"


def steps(
    *prepare_us: int, others: int = 96, kernel: str = KERNEL, frame: str = "", numbered: bool = True
) -> Trace:
    """Three steps: kernels of 40 us, launched in 10 us each, and one that is prepared for longer.

    Args:
        *prepare_us: How long the host prepares each launch of the slow kernel in a step.
        others: Launches of other kernels in a step.
        kernel: The name of the slow kernel.
        frame: A Python function around the preparation.
        numbered: Whether two operators launch it, as Inductor numbers its calls.
    """
    builder, at = TraceBuilder(), 0
    every = others // max(len(prepare_us), 1)
    for number in range(3):
        begin = at
        for place in range(others):
            if place % every == 0 and place // every < len(prepare_us):
                wait = prepare_us[place // every]
                if frame:
                    builder.host(EventKind.PYTHON, frame, us(at), us(at + wait))
                suffix = f"_{place // every % 2}" if numbered else ""
                at = _launch(builder, f"{kernel}{suffix}", kernel, at + wait)
            at = _launch(builder, "aten::mm", "sgemm", at)
        builder.step(number, us(begin), us(at))
    return builder.build()


def _launch(builder: TraceBuilder, operator: str, kernel: str, at: int) -> int:
    """Launch a kernel in 10 us that runs for 40 us; the host waits for it. Returns when it ends."""
    builder.operator(operator, us(at), us(at + 10), launches=False)
    builder.launch(us(at + 2), us(at + 9))
    if kernel == COPY:
        builder.copy(CopyDirection.HOST_TO_DEVICE, us(at + 10), us(at + 50), name=kernel)
    else:
        builder.kernel(kernel, us(at + 10), us(at + 50))
    return at + 50


SLOW = steps(2000, 1900, 2100, 1800)
FIXED = steps(0, 0, 0, 0)


def test_all_gaps_before_one_kernel_are_one_cause() -> None:
    checked = check_rule(SlowLaunch, slow=SLOW, fixed=FIXED, exactly=False)
    (finding,) = checked.findings
    # 7.8 ms of preparing, and 10 us for each of the 4 launches: 7.84 ms in steps of 12.8 ms.
    assert "7.84 ms of each step" in finding.summary
    assert f"before one kernel, {KERNEL} (4 gaps per step of 1.96 ms on average)" in finding.summary
    assert finding.saving is not None
    assert 0.8 * 23.4e6 <= finding.saving.expected_ns <= 23.4e6 <= finding.saving.high_ns


def test_it_is_neither_slow_python_nor_slow_launching() -> None:
    # Two of the four gaps are longer than two milliseconds, from where on a gap is a stall.
    assert find(PythonOverhead, SLOW) == ()
    (finding,) = find(LaunchBound, SLOW) or ()
    assert "0 of each step" not in finding.summary
    assert finding.saving is not None
    assert finding.saving.high_ns < 4e6  # 96 launches of 10 us in 3 steps: 2.9 ms


def test_the_code_that_prepares_the_launch_is_named() -> None:
    (finding,) = find(SlowLaunch, steps(2000, 1900, 2100, 1800, frame="model.py(7): mlp")) or ()
    assert finding.summary.endswith("mostly in model.py:7 mlp.")


@pytest.mark.parametrize(
    "prepare_us",
    [
        (2000,),  # once per step: other code of the step
        (20, 20, 20, 7000),  # one long gap among short ones
        (60, 60, 60, 60),  # seven times as long as others
    ],
)
def test_what_is_no_slow_launch(prepare_us: tuple[int, ...]) -> None:
    assert find(SlowLaunch, steps(*prepare_us)) == ()


def test_kernels_of_the_compiler_are_launched_by_its_wrapper() -> None:
    generated = steps(2000, 1900, 2100, 1800, kernel="triton_poi_fused_cat_0", numbered=False)
    (finding,) = find(SlowLaunch, generated) or ()
    assert finding.title == "Speed up the generated wrapper of the compiled code"
    assert "cheaper-launch" not in {remedy.change for remedy in finding.remedies}


def test_python_before_compiled_code_is_named() -> None:
    generated = steps(
        2000, 1900, 2100, 1800, kernel="triton_poi_fused_cat_0", numbered=False,
        frame="models/llama.py(374): forward",
    )  # fmt: skip
    (finding,) = find(SlowLaunch, generated) or ()
    assert finding.title == "Do less before the compiled code: models/llama.py:374 forward"
    assert finding.remedies[0].change != "device-graphs"


def test_just_below_and_just_above_the_limit() -> None:
    # 7.84 of 12.8 ms are 61.25 %.
    assert find(SlowLaunch, SLOW, settings={"minimum_share": 0.62}) == ()
    assert len(find(SlowLaunch, SLOW, settings={"minimum_share": 0.61}) or ()) == 1


def test_a_copy_is_no_kernel() -> None:
    assert find(SlowLaunch, steps(2000, 1900, 2100, 1800, kernel=COPY)) == ()
