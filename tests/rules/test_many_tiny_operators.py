from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from tb_perfadvisor.machine.facts import Facts, Line, Lines
from tb_perfadvisor.rules.launch.eager import ManyTinyOperators
from tb_perfadvisor.rules.launch.launching import LaunchBound
from tb_perfadvisor.signals.core.origins import NODE
from tb_perfadvisor.testing import TraceBuilder, check_rule, find
from tb_perfadvisor.testing.builder import us
from tb_perfadvisor.trace import Trace
from tb_perfadvisor.trace.intervals import total_ns

WORK_US, EVERY_US, TAKES_US = 200, 20, 5
GRADIENT = f"{NODE}torch::autograd::AccumulateGrad"


def program(
    names: Sequence[str],
    *,
    in_optimizer: bool = False,
    every_us: int = EVERY_US,
    takes_us: int = TAKES_US,
) -> Trace:
    """Two steps on the CPU: 200 us of work, then these operators, one every 20 us."""
    builder = TraceBuilder()
    length = WORK_US + every_us * len(names)
    for number in range(2):
        start = number * length
        builder.step(number, us(start), us(start + length))
        builder.operator("aten::mm", us(start), us(start + WORK_US - 20), launches=False)
        if in_optimizer:
            label = "Optimizer.step#Lion.step"
            builder.annotation(label, us(start + WORK_US - 10), us(start + length))
        for place, name in enumerate(names):
            at = start + WORK_US + every_us * place
            builder.operator(name, us(at), us(at + takes_us), launches=False)
    return builder.build()


def test_saves_what_one_operator_for_all_parameters_saves() -> None:
    # 80 operators every 20 us, or one: 79 x 20 us = 1580 us.
    checked = check_rule(
        ManyTinyOperators,
        slow=program(["aten::mul_", "aten::addcdiv_"] * 40, in_optimizer=True),
        fixed=program(["aten::_foreach_add_"], in_optimizer=True),
        saves="1580us",
        tolerance=0.06,
        exactly=False,
        scales=False,  # the cost of recording and the limit of five microseconds stay
    )
    (finding,) = checked.findings
    # The loop ends with its last operator: 79 x 20 + 5 us of 200 + 80 x 20.
    assert "1.58 ms of each step (88.1 %)" in finding.summary
    assert "the optimizer's loop over parameters in Optimizer.step#Lion.step" in finding.summary
    assert "80 operators in 40 iterations" in finding.summary
    assert finding.saving is not None
    # All of it is dispatch, without 0.6 us for recording each operator; 1/40 is left.
    dispatch_us = 79 * 20 + 5 - 80 * 0.6
    assert finding.saving.expected_ns == int(2 * us(1) * dispatch_us * (1 - 1 / 40))
    assert "foreach" in finding.remedies[0].text + finding.remedies[0].snippet


def test_operators_cost_something_without_a_profiler() -> None:
    names = ["aten::mul_", "aten::addcdiv_"] * 40
    trace = program(names, in_optimizer=True, every_us=1, takes_us=1)
    (finding,) = find(ManyTinyOperators, trace) or ()
    assert finding.saving is not None
    # Dispatch of 80 us, less recording: 2.0, 1.0 and 0.5 times 80 x 0.6 us. The first two leave
    # less than 80 operators take: 0.4 and 0.65 us each.
    assert finding.saving.low_ns == int(2 * us(1) * 0.8 * 80 * 0.4)
    assert finding.saving.expected_ns == int(2 * us(1) * 80 * 0.65 * (1 - 1 / 40))
    assert finding.saving.high_ns == 2 * us(80 - 24)


@pytest.mark.parametrize(("cell", "expected"), [("lstm", 1.0), ("gru", 0.2)])
def test_an_lstm_layer_is_one_operator_and_a_gru_layer_is_not(cell: str, expected: float) -> None:
    names = ["aten::select", f"aten::{cell}_cell"] * 20
    (finding,) = find(ManyTinyOperators, program(names)) or ()
    assert "a loop over the places of a sequence" in finding.summary
    assert finding.saving is not None
    dispatch_us = 39 * 20 + 5 - 40 * 0.6
    assert finding.saving.expected_ns == int(2 * us(1) * dispatch_us * expected * (1 - 1 / 20))
    assert (finding.saving.low_ns > 0) == (cell == "lstm")


def test_a_loop_over_samples_is_batched() -> None:
    forward = ["aten::unbind", *["aten::layer_norm", "aten::tanh"] * 20, "aten::stack"]
    backward = [f"{NODE}TanhBackward0", f"{NODE}NativeLayerNormBackward0"] * 20
    (finding,) = find(ManyTinyOperators, program([*forward, *backward])) or ()
    assert "a loop over samples" in finding.summary
    assert "vmap" in finding.remedies[0].text
    # Both passes are shown, each with its two operators.
    (passes, *_) = finding.evidence
    assert [row[:2] for row in passes.rows] == [  # type: ignore[union-attr]
        (1, "aten::layer_norm"),
        (1, "aten::tanh"),
        (2, f"{NODE}TanhBackward0"),
        (2, f"{NODE}NativeLayerNormBackward0"),
    ]


def test_layers_can_only_be_compiled() -> None:
    """What that saves is said by eager-steps."""
    names = [*["aten::linear", "aten::relu"] * 20, *[f"{NODE}AddmmBackward0", GRADIENT] * 20]
    assert find(ManyTinyOperators, program(names)) == ()


def test_operators_that_compute_are_not_tiny() -> None:
    # Of each 20 us, 18 are one operator's own time, of which 5 count as dispatch: 7 of 20.
    names = ["aten::select", "aten::mul"] * 20
    assert find(ManyTinyOperators, program(names, takes_us=18)) == ()
    # With 16 us, it is 9 of 20.
    assert find(ManyTinyOperators, program(names, takes_us=16))


def test_just_below_and_just_above_the_limit() -> None:
    # Expected: (31 x 20 + 5 us - 32 x 0.6) x 15/16 = 568 of 200 + 640 us; 67.6 %.
    trace = program(["aten::mul_", "aten::add_"] * 16, in_optimizer=True)
    assert find(ManyTinyOperators, trace, settings={"minimum_share": 0.68}) == ()
    assert find(ManyTinyOperators, trace, settings={"minimum_share": 0.67})


def on_device(kernel_us: int) -> Trace:
    """Two steps of 20 samples: each takes two operators of 20 us, which launch a kernel each."""
    builder = TraceBuilder()
    for number in range(2):
        start = 1000 * number
        builder.step(number, us(start), us(start + 1000))
        for place in range(40):
            at = start + 20 * place
            name = "aten::select" if place % 2 else "aten::mul"
            builder.operator(name, us(at), us(at + 20))
            builder.kernel("elementwise", us(at + 20 - kernel_us), us(at + 20))
    return builder.build()


def test_on_a_device_it_explains_idle_time_of_launches() -> None:
    (finding,) = find(ManyTinyOperators, on_device(5)) or ()
    (general,) = find(LaunchBound, on_device(5)) or ()
    assert finding.saving is not None
    assert general.saving is not None
    # The device idles 15 us before each of 40 kernels.
    assert total_ns(finding.saving.expected_from) == 2 * us(40 * 15)
    assert general.saving.claimed_ns >= finding.saving.claimed_ns
    assert ManyTinyOperators.refines == LaunchBound.id


def test_a_busy_device_does_not_wait_for_a_loop() -> None:
    assert find(ManyTinyOperators, on_device(20)) == ()


@pytest.mark.parametrize("place", ["line", "module", "annotation"])
def test_the_place_of_the_loop_is_named(place: str) -> None:
    builder = TraceBuilder().step(0, 0, us(900))
    if place == "annotation":
        builder.annotation("losses", 0, us(850))
    if place == "module":
        builder.annotation("nn.Module: head (Loss)", 0, us(850))
    frame = {"frame": "train.py:12 loss"} if place == "line" else {}
    for number in range(40):
        name = "aten::select" if number % 2 else "aten::mul"
        builder.operator(name, us(20 * number), us(20 * number + 5), launches=False, **frame)
    (finding,) = find(ManyTinyOperators, builder.build()) or ()
    named = {"line": "train.py:12 loss", "module": "head (Loss)", "annotation": "losses"}
    assert f"elements in {named[place]}:" in finding.summary


@pytest.mark.parametrize(
    ("share", "step_us", "where"),
    [
        (0.6, 900, " in train.py:54"),
        (0.4, 900, ""),
        (0.6, 1_700, ""),
    ],
)
def test_a_loop_that_takes_most_of_the_time_is_where_the_program_mostly_was(
    share: float, step_us: int, where: str
) -> None:
    """A loop of 785 us, in which no stacks were recorded."""
    builder = TraceBuilder().step(0, 0, us(step_us))
    for number in range(40):
        name = "aten::select" if number % 2 else "aten::mul"
        builder.operator(name, us(20 * number), us(20 * number + 5), launches=False)
    line = Line("train.py", 54, share, "", activity="calls")
    trace = replace(builder.build(), facts=Facts(lines=Lines(8.0, 200, (line,))))
    (finding,) = find(ManyTinyOperators, trace) or ()
    assert f"a loop over samples or other elements{where}:" in finding.summary
