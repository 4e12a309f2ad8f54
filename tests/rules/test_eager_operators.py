from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tb_perfadvisor import analyze
from tb_perfadvisor.machine.facts import Facts, Line, Lines
from tb_perfadvisor.rules.launch.eager import EagerOperators
from tb_perfadvisor.rules.launch.host_work import PythonOverhead
from tb_perfadvisor.rules.launch.launching import LaunchBound
from tb_perfadvisor.testing import TraceBuilder, check_rule, find
from tb_perfadvisor.testing.builder import us
from tb_perfadvisor.testing.symbols import Symbol
from tb_perfadvisor.trace import EventKind, Framework, Trace

COSTLY_CALL_NS, CALL_NS, CHEAP_CALL_NS = 280_000, 200_000, 140_000
"""What a call of a tf.function from Python takes in each step, as measured with TensorFlow 2.21."""


def steps(name: str, calls: int, framework: Framework = "jax", each_us: int = 100) -> Trace:
    """Two steps of calls that each launch 50 us of work halfway."""
    builder = TraceBuilder(framework)
    length = calls * each_us
    for number in range(2):
        for call in range(calls):
            at = number * length + call * each_us
            symbol = Symbol(EventKind.ANNOTATION, name)
            builder.add(symbol, us(at), us(at + each_us), thread="main")
            builder.launch(us(at + each_us - 50), us(at + each_us))
            builder.kernel("loop_multiply_fusion", us(at + each_us - 50), us(at + each_us))
        builder.step(number, us(number * length), us((number + 1) * length))
    return builder.build()


def test_saves_what_the_fix_saves() -> None:
    # The device waits 50 us for each of twenty operators. A single program launches at its
    # start, and the device works for 20 x 50 us.
    fixed = TraceBuilder("jax")
    for number in range(2):
        at = number * 1000
        fixed.step(number, us(at), us(at + 1000))
        fixed.annotation("PjitFunction(step)", us(at), us(at + 100))
        fixed.launch(us(at), us(at + 100))
        fixed.kernel("fusion", us(at), us(at + 1000))
    checked = check_rule(
        EagerOperators,
        slow=steps("PjitFunction(multiply)", 20),
        fixed=fixed.build(),
        saves="1ms",
        tolerance=0.05,
        exactly=False,
    )
    assert "20 calls per step" in checked.findings[0].summary
    assert find(LaunchBound, steps("PjitFunction(multiply)", 20)) == ()


@pytest.mark.parametrize(
    ("name", "framework", "fires"),
    [
        ("EagerExecute: MatMul", "tensorflow", True),
        ("EagerExecute: __inference_step_8407", "tensorflow", False),  # a tf.function
        ("PjitFunction(add)", "jax", True),
        ("PjitFunction(loss_fn)", "jax", False),  # a jitted function of the user
        ("PjitFunction(s)", "jax", False),
        ("MatMul", "tensorflow", False),
    ],
)
def test_recognizes_eager_operators(name: str, framework: Framework, *, fires: bool) -> None:
    assert bool(find(EagerOperators, steps(name, 20, framework))) == fires


def test_what_a_jitted_function_calls_while_it_is_traced_is_not_eager() -> None:
    def steps(enclosing: str) -> Trace:
        builder = TraceBuilder("jax")
        for number in range(3):
            at = 3_000 * number
            builder.annotation(enclosing, us(at), us(at + 2_000))
            for call in range(20):
                start = at + 100 * call
                builder.annotation("PjitFunction(multiply)", us(start), us(start + 40))
                builder.operator("mul.1", us(start + 20), us(start + 40), thread="pool")
            builder.step(number, us(at), us(at + 3_000))
        return builder.build()

    assert find(EagerOperators, steps("PjitFunction(loss_fn)")) == ()
    assert find(EagerOperators, steps("make batch"))


def test_in_pytorch_it_is_launch_bound() -> None:
    assert find(EagerOperators, steps("aten::mul", 20, "pytorch")) is None


def test_on_the_cpu_python_between_operators_counts() -> None:
    # Twenty operators of 40 us, 60 us apart, in steps of 2 ms. Compiled, 0.8 ms of that and a call
    # of 200 us are left.
    def eager(gap_us: int) -> Trace:
        builder = TraceBuilder("tensorflow")
        length = 20 * (40 + gap_us)
        for number in range(3):
            for call in range(20):
                at = number * length + call * (40 + gap_us)
                builder.operator("EagerExecute: MatMul", us(at), us(at + 40))
            builder.step(number, us(number * length), us((number + 1) * length))
        return builder.build()

    (finding,) = find(EagerOperators, eager(60)) or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns == 3 * (20 * 60_000 - CALL_NS)
    # Longer gaps have another cause.
    assert find(EagerOperators, eager(5_100)) == ()
    # A quarter of the run goes into an evaluation between epochs, which stays as it is.
    line = Line("train.py", 87, 0.25, "evaluate", side_work="between epochs")
    trace = replace(eager(60), facts=Facts(lines=Lines(40.0, 1_000, (line,))))
    (finding,) = find(EagerOperators, trace) or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns == 3 * (15 * 60_000 - CALL_NS)
    assert finding.saving.low_ns == 3 * (15 * 60_000 - COSTLY_CALL_NS)


def test_operators_that_fetch_input_are_not_compiled() -> None:
    builder = TraceBuilder("tensorflow")
    for number in range(3):
        for call in range(21):
            at = number * 2_100 + call * 100
            name = "MatMul" if call else "IteratorGetNext"
            builder.operator(f"EagerExecute: {name}", us(at), us(at + 40))
        builder.step(number, us(number * 2_100), us(number * 2_100 + 2_100))
    (finding,) = find(EagerOperators, builder.build()) or ()
    assert "20 calls per step" in finding.summary


def test_a_long_gap_in_a_step_that_is_mostly_eager_is_its_own() -> None:
    """200 operators of 40 us, 60 us apart, and 10 ms of Python in the middle of a step of 30 ms."""

    def eager(gap_ms: int) -> Trace:
        builder = TraceBuilder("tensorflow")
        length = 200 * 100 + 1_000 * gap_ms
        for number in range(3):
            for call in range(200):
                at = number * length + call * 100 + (1_000 * gap_ms if call >= 100 else 0)
                builder.operator("EagerExecute: MatMul", us(at), us(at + 40))
            builder.step(number, us(number * length), us((number + 1) * length))
        return builder.build()

    (finding,) = find(EagerOperators, eager(10)) or ()
    assert finding.saving is not None
    # Each gap of 60 us, but for the one that is part of 10.06 ms.
    assert finding.saving.low_ns == 3 * (199 * 60_000 - COSTLY_CALL_NS)
    assert finding.saving.expected_ns == 3 * (200 * 60_000 + 10_000_000 - CALL_NS)
    # More than half of the idle time is not between operators: other code decides this step.
    (finding,) = find(EagerOperators, eager(20)) or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns == 3 * (199 * 60_000 - CALL_NS)


@pytest.mark.parametrize("programs", [0, 1])
def test_only_a_step_without_a_compiled_function_gets_one_call_more(programs: int) -> None:
    """Operators of 10 us, 15 us apart: a step of 500 us, of which a call of 200 us stays."""
    builder = TraceBuilder("tensorflow")
    for number in range(3):
        for call in range(20):
            at = number * 500 + call * 25
            builder.operator("EagerExecute: MatMul", us(at), us(at + 10))
        for _ in range(programs):
            at = number * 500 + 494
            builder.operator("EagerExecute: __inference_step_1", us(at), us(at + 6))
        builder.step(number, us(number * 500), us((number + 1) * 500))
    (finding,) = find(EagerOperators, builder.build()) or ()
    assert finding.saving is not None
    # 20 gaps of 15 us are 300 us; the program runs in 6 of them.
    assert finding.saving.expected_ns == 3 * (294_000 if programs else 300_000 - CALL_NS)
    assert finding.saving.low_ns == 3 * (294_000 if programs else 300_000 - COSTLY_CALL_NS)


def test_a_step_that_takes_no_longer_than_a_call_stays_eager() -> None:
    """Ten operators of 10 us, 19 us apart: 190 us between them, and 200 for a call."""
    builder = TraceBuilder("tensorflow")
    for number in range(3):
        for call in range(10):
            at = number * 290 + call * 29
            builder.operator("EagerExecute: MatMul", us(at), us(at + 10))
        builder.step(number, us(number * 290), us((number + 1) * 290))
    assert find(EagerOperators, builder.build()) == ()


@pytest.mark.parametrize(("moves", "is_eager"), [(True, True), (False, False)])
def test_stalls_at_ever_other_places_belong_to_what_they_hit(
    *, moves: bool, is_eager: bool
) -> None:
    """Ten steps of 200 operators of 40 us, 60 us apart, and 40 ms in which nothing runs."""
    builder = TraceBuilder("tensorflow")
    for number in range(10):
        stalled = 17 * number + 5 if moves else 100
        for call in range(200):
            at = number * 60_000 + call * 100 + (40_000 if call >= stalled else 0)
            builder.operator("EagerExecute: MatMul", us(at), us(at + 40))
        builder.step(number, us(number * 60_000), us((number + 1) * 60_000))
    trace = builder.build()
    (finding,) = find(EagerOperators, trace) or ()
    assert finding.saving is not None
    # In both cases, 199 gaps of 60 us are certain; stalls are only if other code has no place.
    assert finding.saving.low_ns == 10 * (199 * 60_000 - COSTLY_CALL_NS)
    assert finding.saving.expected_ns == 10 * (
        200 * 60_000 + 40_000_000 - CALL_NS if is_eager else 199 * 60_000 - CALL_NS
    )
    assert (find(PythonOverhead, trace) == ()) == is_eager


def test_dispatch_inside_of_operators_makes_a_step_eager_too() -> None:
    """200 operators with kernels of 10 us, back to back, and 5.5 or 9 ms of Python in a step."""

    def eager(gap_us: int) -> Trace:
        builder = TraceBuilder("tensorflow")
        for number in range(3):
            begin = number * (200 * 40 + gap_us)
            for call in range(200):
                at = begin + call * 40 + (gap_us if call >= 100 else 0)
                builder.operator("EagerExecute: MatMul", us(at), us(at + 40))
                builder.annotation("KernelAndDeviceFunc::Run", us(at + 30), us(at + 40))
            builder.step(number, us(begin), us(begin + 200 * 40 + gap_us))
        return builder.build()

    # 30 us of each operator are dispatch: 6 ms, more than half of what is idle with 5.5 ms more.
    (finding,) = find(EagerOperators, eager(5_500)) or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns == 3 * (200 * 30_000 + 5_500_000 - CALL_NS)
    (finding,) = find(EagerOperators, eager(9_000)) or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns == 3 * (200 * 30_000 - CALL_NS)


def test_operators_that_save_a_checkpoint_are_not_compiled() -> None:
    def saving(last: str) -> Trace:
        builder = TraceBuilder("tensorflow")
        for number in range(3):
            begin = 10_000 * number
            for call in range(20):
                name = last if call == 19 else "ReadVariableOp"
                at = begin + 100 * call
                builder.operator(f"EagerExecute: {name}", us(at), us(at + 40))
            builder.operator(
                "EagerExecute: __inference_step_1", us(begin + 5_000), us(begin + 9_000)
            )
            builder.step(number, us(begin), us(begin + 10_000))
        return builder.build()

    assert find(EagerOperators, saving("Identity"))
    assert find(EagerOperators, saving("SaveV2")) == ()


def test_in_tensorflow_on_the_cpu_only_kernels_are_work() -> None:
    """Twenty operators of 40 us, 60 us apart; the last 25 us of each are its kernel."""

    def eager(operation: str) -> Trace:
        builder = TraceBuilder("tensorflow")
        for number in range(3):
            for call in range(20):
                at = number * 2_000 + call * 100
                builder.operator(f"EagerExecute: {operation}", us(at), us(at + 40))
                builder.operator(f"EagerLocalExecute: {operation}", us(at + 5), us(at + 40))
                builder.annotation("KernelAndDeviceFunc::Run", us(at + 15), us(at + 40))
            builder.step(number, us(number * 2_000), us((number + 1) * 2_000))
        return builder.build()

    (finding,) = find(EagerOperators, eager("MatMul")) or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns == 60 * (60_000 + 15_000) - 3 * CALL_NS
    assert finding.saving.high_ns == 60 * (60_000 + 15_000) - 3 * CHEAP_CALL_NS
    # A graph fuses elementwise work with its neighbors: half of it is expected to go.
    (finding,) = find(EagerOperators, eager("Relu")) or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns == 60 * (75_000 + 25_000 // 2) - 3 * CALL_NS
    assert finding.saving.high_ns == 60 * 100_000 - 3 * CHEAP_CALL_NS
    assert finding.saving.basis == "modeled"


def test_arrays_filled_with_a_number_vanish_from_a_compiled_program() -> None:
    """Three steps of twenty operators of 40 us, 60 us apart; each runs 30 us in a thread pool."""

    def eager(function: str) -> Trace:
        builder = TraceBuilder("jax")
        for number in range(3):
            for call in range(20):
                at = number * 2_000 + call * 100
                builder.annotation(f"PjitFunction({function})", us(at), us(at + 40))
                hlo = {"module": f"jit_{function}(3)", "category": "loop fusion"}
                symbol = Symbol(EventKind.OPERATOR, "wrapped", hlo=hlo)
                builder.add(symbol, us(at + 10), us(at + 40), thread="pool")
            builder.step(number, us(number * 2_000), us((number + 1) * 2_000))
        return builder.build()

    for function, gone_us in (("multiply", 15), ("broadcast_in_dim", 30)):
        (finding,) = find(EagerOperators, eager(function)) or ()
        assert finding.saving is not None
        # A call of a jitted function takes 10 us, and 5 at least.
        assert finding.saving.expected_ns == 60 * us(70 + gone_us) - 3 * us(10)
        assert finding.saving.high_ns == 60 * us(100) - 3 * us(5)


def test_a_few_eager_operators_are_left_alone() -> None:
    assert find(EagerOperators, steps("EagerExecute: _EagerConst", 9, "tensorflow")) == ()
    assert find(EagerOperators, steps("EagerExecute: _EagerConst", 10, "tensorflow"))


def test_just_below_and_just_above_the_limit() -> None:
    # The first gap of all has nothing before it, but belongs to the first step: 20 x 50 us.
    trace = steps("PjitFunction(add)", 20)
    assert find(EagerOperators, trace, settings={"minimum_share": 0.51}) == ()
    assert len(find(EagerOperators, trace, settings={"minimum_share": 0.49}) or ()) == 1


def test_a_recorded_block_without_jit(corpus: Path) -> None:
    # transformer_block of generate_attention_trace.py: 24 matmul, 12 add, 12 multiply, ...
    report = analyze(corpus / "tracelens-jax" / "jax08_attention")
    findings = {finding.rule_id: finding for finding in report.findings}
    assert "80 calls in all" in findings["eager-operators"].summary
    saving = findings["eager-operators"].saving
    assert saving is not None
    # Without them, a replay also closes some of the idle time behind them.
    assert 0.23 < saving.share_high < 0.27
    # Recording 920 frames of 230 ns and 1,325 ranges of 300 takes 0.61 of the 32.6 ms.
    assert saving.share_expected == pytest.approx(0.24 - 0.61 / 32.6, abs=0.01)


def test_keras_and_jitted_steps_are_compiled(corpus: Path) -> None:
    for path in ("local-tf-cpu/keras_slow_input", "local-jax-cpu/train_steps"):
        report = analyze(corpus / path)
        assert "eager-operators" not in {finding.rule_id for finding in report.findings}
