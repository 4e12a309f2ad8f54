"""A step is what comes again in the same order, whatever marks its parts."""

from __future__ import annotations

import numpy as np
import pytest

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.core.steps.periods import period_of
from tb_perfadvisor.signals.core.steps.steps import Steps
from tb_perfadvisor.testing import TraceBuilder, ms, run_of
from tb_perfadvisor.trace import EventKind

FUSION = "%fusion.1 = f32[8,128]{1,0:T(8,128)} fusion(f32[8,128]{1,0:T(8,128)} %x)"
NODE = "autograd::engine::evaluate_function: {}Backward0"


@pytest.mark.parametrize(
    ("kinds", "period"),
    [
        ("aaaaaa", 1),
        ("ababab", 2),
        ("aabaab", 3),
        ("aabaabaa", 3),
        ("abcd", 0),
        ("abababb", 0),
        ("a", 0),
        ("", 0),
    ],
)
def test_the_period_of_a_sequence(kinds: str, period: int) -> None:
    assert period_of(np.array([ord(kind) for kind in kinds], dtype=np.int64)) == period


def updates(*parts: tuple[str, float], iterations: int = 6, logs_every: int = 0) -> TraceBuilder:
    """Iterations of parts: forward and backward of a model, 1 ms of update, 1 ms between.

    Args:
        parts: The node of each part's backward pass, and the time of forward and backward in ms.
        iterations: How many.
        logs_every: After how many updates the program reads a value, for 5 ms.
    """
    builder, at, count = TraceBuilder(), 0.0, 0
    for _ in range(iterations):
        for node, length in parts:
            builder.operator("aten::linear", ms(at), ms(at + length / 2))
            builder.operator(NODE.format(node), ms(at + length / 2), ms(at + length))
            at += length
            builder.annotation("Optimizer.step#Adam.step", ms(at), ms(at + 1))
            builder.operator("aten::_foreach_add_", ms(at), ms(at + 1))
            at, count = at + 2, count + 1
            if logs_every and count % logs_every == 0:
                builder.operator("aten::item", ms(at), ms(at + 5))
                at += 5
    return builder


def steps_of(builder: TraceBuilder) -> Steps:
    return Signals(run_of(builder.build())).steps


def test_two_optimizers_make_one_step() -> None:
    steps = steps_of(updates(("Addmm", 8), ("Convolution", 18)))
    # 8 + 2 + 18 + 2 ms, from the second update of an iteration to that of the next.
    assert steps.duration_ns.tolist() == [ms(30)] * 5
    assert steps.source == "repeats of Optimizer.step#Adam.step, 2 each"


def test_several_updates_of_one_model_for_one_of_another() -> None:
    steps = steps_of(updates(("Addmm", 8), ("Addmm", 8), ("Convolution", 18)))
    assert steps.duration_ns.tolist() == [ms(40)] * 5


def test_models_of_equal_layers_differ_in_time() -> None:
    steps = steps_of(updates(("Addmm", 8), ("Addmm", 18)))
    assert steps.duration_ns.tolist() == [ms(30)] * 5


def test_equal_updates_are_steps_of_their_own() -> None:
    steps = steps_of(updates(("Addmm", 8)))
    assert steps.duration_ns.tolist() == [ms(10)] * 5


def test_what_the_program_does_now_and_then_makes_no_longer_step() -> None:
    steps = steps_of(updates(("Addmm", 8), iterations=9, logs_every=3))
    assert len(steps) == 8


def test_an_optimizer_inside_of_the_backward_pass_marks_no_step() -> None:
    builder = TraceBuilder()
    for step in range(5):
        at = 10 * step
        builder.operator("aten::linear", ms(at), ms(at + 3))
        for begin in (3, 5, 7):
            node = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
            builder.operator(node, ms(at + begin), ms(at + begin + 2), thread="autograd")
            name = "Optimizer.step#SGD.step"
            builder.host(
                EventKind.ANNOTATION,
                name,
                ms(at + begin + 1),
                ms(at + begin + 2),
                thread="autograd",
            )
    steps = steps_of(builder)
    assert steps.source == "the ends of backward passes"
    # From 9 to 49 ms.
    assert steps.duration_ns.tolist() == [ms(10)] * 4


def programs(names: str, *, on_device: bool) -> TraceBuilder:
    """Calls of jitted functions, or runs of programs on a TPU, of 3 ms every 4 ms."""
    builder = TraceBuilder("jax")
    if on_device:
        builder.device("TPU v5e", kind="tpu")
    for place, name in enumerate(names):
        begin, end = ms(4 * place), ms(4 * place + 3)
        if on_device:
            builder.derived("modules", f"jit_{name}(7)", begin, end)
            builder.xla_op("fusion.1", begin, end, text=FUSION, module=f"jit_{name}(7)")
        else:
            builder.annotation(f"PjitFunction({name})", begin, end)
    return builder


@pytest.mark.parametrize("on_device", [False, True])
def test_a_model_that_is_called_several_times_is_a_part(on_device: bool) -> None:
    steps = steps_of(programs("dddddt" * 5, on_device=on_device))
    # Six programs of 4 ms each; what follows the last first call is not known to be whole.
    assert steps.duration_ns.tolist() == [ms(24)] * 4
    assert steps.source.endswith(", 5 runs each")


@pytest.mark.parametrize("on_device", [False, True])
def test_a_model_that_is_called_once_is_the_step(on_device: bool) -> None:
    steps = steps_of(programs("dt" * 5, on_device=on_device))
    assert len(steps) >= 4
    assert ms(8) in steps.duration_ns
