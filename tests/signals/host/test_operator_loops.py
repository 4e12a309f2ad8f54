"""Loops of operators in drawn traces: their period, what they run over, and their dispatch."""

from __future__ import annotations

from collections.abc import Sequence

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.core.origins import NODE
from tb_perfadvisor.signals.host.loops import LoopKind, OperatorLoop, operator_loops
from tb_perfadvisor.testing import TraceBuilder
from tb_perfadvisor.testing.builder import run_of, us
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.intervals import total_ns

EVERY_US, TAKES_US = 20, 4


def loops(*steps: Sequence[str], optimizer: bool = False) -> tuple[OperatorLoop, ...]:
    """The loops of steps that call these operators, 4 us each, one every 20 us."""
    builder, start = TraceBuilder(), 0
    for number, names in enumerate(steps):
        length = EVERY_US * len(names) + 100
        builder.step(number, us(start), us(start + length))
        if optimizer:
            builder.annotation("Optimizer.step#SGD.step", us(start), us(start + length))
        for place, name in enumerate(names):
            at = start + EVERY_US * place
            builder.operator(name, us(at), us(at + TAKES_US), launches=False)
        start += length
    return operator_loops(Signals(run_of(builder.build())))


def test_a_sequence_that_repeats_is_a_loop() -> None:
    names = ["aten::ones", *["aten::select", "aten::mul", "aten::add"] * 20, "aten::stack"]
    (loop,) = loops(names, names)
    assert (loop.kind, loop.iterations) == (LoopKind.ELEMENTS, 20)
    # Two steps with 20 iterations of three operators.
    assert len(loop.rows) == 2 * 60
    assert loop.passes == ((0, 3),)
    # 60 operators every 20 us, the last of which takes 4: all of it is dispatch.
    assert total_ns(loop.spans) == loop.dispatch_ns == 2 * us(59 * 20 + 4)


def test_the_period_is_the_shortest() -> None:
    # Also a loop of 16 iterations of six operators.
    (loop,) = loops(["aten::select", "aten::mul", "aten::add"] * 32)
    assert (loop.iterations, loop.passes) == (32, ((0, 3),))


def test_a_loop_around_another_one_is_one_loop() -> None:
    # Of 40 samples, each runs through 20 equal layers; 20 operators repeat in each sample.
    sample = ["aten::select", *["aten::mul", "aten::tanh"] * 20]
    (loop,) = loops(sample * 40)
    assert (loop.iterations, loop.passes) == (40, ((0, 41),))


def test_fifteen_repetitions_are_no_loop() -> None:
    assert loops(["aten::select", "aten::mul"] * 15) == ()
    assert loops(["aten::select", "aten::mul"] * 16)


def test_steps_are_no_iterations() -> None:
    step = ["aten::mm", "aten::relu", "aten::sum"]
    assert loops(*[step] * 20) == ()


def test_only_own_time_up_to_five_microseconds_is_dispatch() -> None:
    builder = TraceBuilder().step(0, 0, us(4000))
    for place in range(20):
        at = 100 * place
        builder.operator("aten::linear", us(at), us(at + 100), launches=False)
        builder.operator("aten::addmm", us(at + 3), us(at + 90), launches=False)
    (loop,) = operator_loops(Signals(run_of(builder.build())))
    # Of each linear 13 us are its own, of which 5 count; of each addmm 87, of which 5 count.
    assert (total_ns(loop.spans), loop.dispatch_ns) == (us(2000), 20 * us(5 + 5))


def test_dispatch_of_operators_that_overlap_is_within_the_loop() -> None:
    builder = TraceBuilder().step(0, 0, us(4000))
    for place in range(20):
        builder.operator("aten::mul", us(4 * place), us(4 * place + 6), launches=False)
    (loop,) = operator_loops(Signals(run_of(builder.build())))
    # 20 operators of 6 us, of which 5 count, would be 100 us. The last one starts at 76 us.
    assert (total_ns(loop.spans), loop.dispatch_ns) == (us(76 + 6), us(76 + 6))


def test_a_long_gap_is_not_part_of_the_loop() -> None:
    builder = TraceBuilder().step(0, 0, us(9000))
    for place in range(20):
        at = 20 * place + (300 if place >= 10 else 0)
        builder.operator("aten::mul", us(at), us(at + 4), launches=False)
    (loop,) = operator_loops(Signals(run_of(builder.build())))
    # The gap is 300 + 16 us long, above the limit of 200.
    assert total_ns(loop.spans) == us(2 * (9 * 20 + 4))


def kinds(*steps: Sequence[str], optimizer: bool = False) -> list[LoopKind]:
    return [loop.kind for loop in loops(*steps, optimizer=optimizer)]


def test_the_operators_tell_what_a_loop_runs_over() -> None:
    gradient = f"{NODE}torch::autograd::AccumulateGrad"
    backward = [f"{NODE}AddmmBackward0", gradient, f"{NODE}TBackward0", gradient]
    assert kinds([*["aten::linear", "aten::relu"] * 30, *backward * 30]) == [LoopKind.LAYERS]
    # As many iterations as gradients.
    moving = ["aten::linear", *[gradient] * 9, "aten::sum", *[gradient] * 11]
    assert kinds([*moving, *["aten::mul_", "aten::add_"] * 20]) == [LoopKind.PARAMETERS]
    # What a fused optimizer saves on the CPU has a price of its own.
    assert kinds(["aten::mul_", "aten::add_"] * 20, optimizer=True) == []
    assert kinds(["aten::select", "aten::gru_cell"] * 20) == [LoopKind.SEQUENCE]
    # Products without anything that tells samples from layers.
    assert kinds(["aten::linear", "aten::slice", "aten::relu"] * 20) == [LoopKind.UNKNOWN]
    assert kinds(["aten::unbind", *["aten::linear", "aten::relu"] * 20]) == [LoopKind.ELEMENTS]


def test_forward_and_backward_pass_are_one_loop() -> None:
    forward = ["aten::unbind", *["aten::linear", "aten::tanh"] * 30]
    backward = [f"{NODE}TanhBackward0", f"{NODE}AddmmBackward0", f"{NODE}TBackward0"] * 30
    (loop,) = loops([*forward, *backward])
    assert (loop.kind, loop.iterations, len(loop.passes)) == (LoopKind.ELEMENTS, 30, 2)
    # The backward pass has more operators, so it comes first.
    assert [period for _, period in loop.passes] == [3, 2]


def backward_loop(calls: int) -> tuple[OperatorLoop, ...]:
    """Twenty pairs of backward nodes, whose forward pass had this many operators."""
    builder = TraceBuilder().step(0, 0, us(9000))
    for call in range(calls):
        at = us(40 * call)
        builder.operator(f"aten::gru{call}", at, at + us(20), key=f"{call}", launches=False)
    for place in range(40):
        at = us(4000 + 20 * place)
        node = NODE + ("MulBackward0" if place % 2 else "TanhBackward0")
        forward = f"{place % calls}"
        builder.operator(node, at, at + us(4), forward=forward, launches=False)
    return operator_loops(Signals(run_of(builder.build())))


def test_the_derivative_of_one_operator_is_no_loop() -> None:
    assert backward_loop(1) == ()
    (loop,) = backward_loop(40)
    assert (loop.kind, loop.iterations) == (LoopKind.ELEMENTS, 20)


def test_operators_of_the_input_pipeline_are_no_loop_of_the_step() -> None:
    builder = TraceBuilder().step(0, 0, us(1000))
    builder.host(EventKind.INPUT_WAIT, "enumerate(DataLoader)#_Iter.__next__", 0, us(600))
    for place in range(20):
        builder.operator("aten::mul", us(20 * place), us(20 * place + 4), launches=False)
    builder.operator("aten::mm", us(700), us(900), launches=False)
    assert operator_loops(Signals(run_of(builder.build()))) == ()
