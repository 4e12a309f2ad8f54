from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from tb_perfadvisor.machine.facts import Examined, Facts, Made, Program
from tb_perfadvisor.rules.launch.eager import EagerSteps, ManyTinyOperators
from tb_perfadvisor.signals.core.origins import NODE
from tb_perfadvisor.testing import TraceBuilder, check_rule, find
from tb_perfadvisor.testing.builder import us
from tb_perfadvisor.trace import Trace

GRADIENT = f"{NODE}torch::autograd::AccumulateGrad"
DENSITY = ["aten::sub", "aten::div", "aten::exp", "aten::mul", "aten::sum", "aten::log"]


def program(names: Sequence[str], *, every_us: int = 10, device: bool = False) -> Trace:
    """Three steps of operators of 6 us, one every 10 us."""
    builder = TraceBuilder()
    length = every_us * len(names)
    for number in range(3):
        start = number * length
        builder.step(number, us(start), us(start + length))
        for place, name in enumerate(names):
            at = start + every_us * place
            builder.operator(name, us(at), us(at + 6), launches=device)
            if device:
                builder.kernel("elementwise", us(at + 5), us(at + 6))
    return builder.build()


def test_saves_what_a_fused_loop_saves() -> None:
    # 60 operators every 10 us. Compiled, one region of 477 us is left: what is foretold is
    # 60 x 2.6 us, without the 33 us of a call.
    checked = check_rule(
        EagerSteps,
        slow=program(DENSITY * 10),
        fixed=program(["Torch-Compiled Region: 0/0"], every_us=477),
        saves="123us",
        tolerance=0.01,
        scales=False,  # the costs are of a processor
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    assert finding.saving.expected_ns == 3 * (60 * 2_600 - 33_000)
    assert finding.saving.low_ns == 0
    assert finding.saving.high_ns == int(2.6 * finding.saving.expected_ns)
    assert finding.instance == "60 operators per step"
    assert "torch.compile" in finding.remedies[0].snippet


@pytest.mark.parametrize(
    ("facts", "place"), [({}, " in the loop at life/main.py:53"), ({"is_loop": False}, "")]
)
def test_the_loop_of_the_steps_is_named(facts: dict[str, bool], place: str) -> None:
    made = (Made("step loop", "loop", "life/main.py", 53, "", facts),)
    trace = replace(program(DENSITY * 10), facts=Facts(program=Program(made=made)))
    (finding,) = find(EagerSteps, trace) or ()
    assert finding.instance == f"60 operators per step{place}"


def test_products_stay_and_gradients_cost() -> None:
    """20 layers with one gradient each: 20 activations in each pass."""
    backward = [f"{NODE}ReluBackward0", f"{NODE}AddmmBackward0", GRADIENT]
    layers = [*["aten::linear", "aten::relu"] * 20, *backward * 20]
    # 40 x 3.3 us of operators, minus 20 x 4.2 us and 54 us: nothing is left.
    assert find(EagerSteps, program(layers)) == ()
    # A chain of operators between the layers changes that.
    longer = [*["aten::linear", *DENSITY] * 20, *backward * 20]
    (finding,) = find(EagerSteps, program(longer)) or ()
    assert finding.saving is not None
    # 20 x 7 operators, minus what 20 gradients and a call cost.
    assert finding.saving.expected_ns == 3 * (140 * 3_300 - 20 * 4_200 - 54_000)


def test_each_break_costs_a_call() -> None:
    """60 operators, with three looks at a number between them."""
    asked = [*DENSITY[:5], "aten::_local_scalar_dense"] * 3
    trace = program([*asked, *DENSITY * 9])
    (finding,) = find(EagerSteps, trace) or ()
    assert finding.saving is not None
    # 15 and 54 operators and the three looks, which are operators in this drawing.
    assert finding.saving.expected_ns == 3 * (72 * 2_600 - 33_000 - 3 * 20_000)
    assert "in 4 pieces, because Python asks" in finding.summary
    # At the end of a step, an optimizer asks, and a loss is read when all is done.
    (finding,) = find(EagerSteps, program([*DENSITY * 10, "aten::nonzero", "aten::item"])) or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns == 3 * (60 * 2_600 - 33_000)
    # A mask that the program writes with keeps the size.
    masked = [*DENSITY * 5, "aten::nonzero", *DENSITY * 5]
    (finding,) = find(EagerSteps, program(masked)) or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns == 3 * (60 * 2_600 - 33_000 - 20_000)


def looked_at(trace: Trace, **found: float) -> Trace:
    return replace(trace, facts=Facts(examined=Examined(4, 0.1, 60, **found)))


def test_all_calls_of_the_model_and_only_its_operators_count() -> None:
    trace = program(DENSITY * 20)
    one = looked_at(trace, model_calls=1, in_models=0.75)
    (finding,) = find(EagerSteps, one) or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns == 3 * (90 * 2_600 - 33_000)
    # A model that samples in ten calls.
    assert find(EagerSteps, looked_at(trace, model_calls=10, in_models=0.75)) == ()
    # No module at all: a function is compiled.
    (finding,) = find(EagerSteps, looked_at(trace)) or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns == 3 * (120 * 2_600 - 33_000)


def test_a_loop_that_one_operator_replaces_is_not_compiled() -> None:
    samples = ["aten::unbind", *["aten::tanh", "aten::sum"] * 20, "aten::stack"]
    assert find(ManyTinyOperators, program(samples))
    assert find(EagerSteps, program(samples)) == ()
    # Of another loop, nobody knows what it runs over.
    unknown = ["aten::tanh", "aten::sum"] * 20
    assert find(ManyTinyOperators, program(unknown)) == ()
    assert find(EagerSteps, program(unknown))


def test_a_recurrent_layer_takes_the_whole_sequence() -> None:
    for calls, change in ((6, "whole-sequence"), (2, "compile")):
        names = [*["aten::rnn_tanh", *DENSITY] * calls, *DENSITY * 8]
        (finding,) = find(EagerSteps, program(names)) or ()
        assert finding.remedies[0].change == change


def test_python_of_the_program_is_not_compiled() -> None:
    # Gaps of 94 us count, those of 394 us do not: 60 operators of 6 us.
    for every_us, gap_us in ((100, 94), (400, 0)):
        (finding,) = find(EagerSteps, program(DENSITY * 10, every_us=every_us),
                          settings={"minimum_share": 0.001}) or ()  # fmt: skip
        assert finding.saving is not None
        assert finding.saving.claimed_ns == us(180 * 6 + 179 * gap_us)


def test_nothing_where_nothing_is_to_be_compiled() -> None:
    assert find(EagerSteps, program(DENSITY)) == ()
    assert find(EagerSteps, program([*DENSITY * 10, "Torch-Compiled Region: 0/0"])) == ()
    assert find(EagerSteps, program(DENSITY * 10, device=True)) is None  # launch-bound says it


def test_just_below_and_just_above_the_limit() -> None:
    # 123 of 600 us: 20.5 %.
    trace = program(DENSITY * 10)
    assert find(EagerSteps, trace, settings={"minimum_share": 0.21}) == ()
    assert find(EagerSteps, trace, settings={"minimum_share": 0.2})
