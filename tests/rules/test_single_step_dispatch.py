from __future__ import annotations

from pathlib import Path

import pytest

from tb_perfadvisor import analyze
from tb_perfadvisor.rules.launch.launching import LaunchBound, SingleStepDispatch
from tb_perfadvisor.testing import TraceBuilder, check_rule, find, us
from tb_perfadvisor.testing.symbols import Symbol
from tb_perfadvisor.trace import EventKind, Trace


def drawn(*, main: str, core: str, modules: str, steps: int = 10) -> str:
    """Identical steps; the text after a comma replaces the first step's cells in all others."""

    def lane(cells: str) -> str:
        first, _, later = cells.partition(",")
        return "|".join([first, *[later or first] * (steps - 1)])

    return f"""
        cell 10us
        step          |{lane("." * len(core.partition(",")[0]))}|
        main          |{lane(main)}|
        tpu 0         |{lane(core)}|
        tpu 0 modules |{lane(modules)}|
    """


SLOW_LANES = {"main": "pppL......", "core": "....XXXXXX", "modules": "....MMMMMM"}
SLOW = drawn(**SLOW_LANES)
# The host dispatches ahead: the core continues from one step to the next by itself.
FIXED = drawn(main="pppL..", core="....X-,----'-", modules="....M-,----'-", steps=20)


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(SingleStepDispatch, slow=SLOW, fixed=FIXED, saves="40us", exactly=False)
    (finding,) = checked.findings
    assert finding.summary == (
        "The device idles for 40.0 µs of each step (40.0 %) between programs that are dispatched"
        " one at a time (1 run per step of 60.0 µs on average)."
    )
    assert SingleStepDispatch.refines == LaunchBound.id


def test_idle_time_inside_a_program_is_left_alone() -> None:
    trace = drawn(main="pppL......", core="XXX....XXX", modules="MMMMMMMMMM")
    assert find(SingleStepDispatch, trace) == ()


def test_a_few_runs_are_not_enough_unless_each_is_a_step() -> None:
    few = drawn(**SLOW_LANES, steps=2)
    assert find(SingleStepDispatch, few) == ()
    assert find(SingleStepDispatch, drawn(**SLOW_LANES, steps=3))


def test_fit_with_small_batches() -> None:
    """As recorded: operators take a small part of each call of the compiled step."""
    builder = TraceBuilder("tensorflow")
    for number in range(5):
        at = us(1000 * number)
        builder.step(number, at, at + us(1000), name="Profiled batch")
        call = "EagerExecute: __inference_multi_step_on_iterator_541"
        builder.annotation(call, at + us(500), at + us(900))
        for start in (600, 700):
            builder.operator(
                "dense/MatMul:MatMul", at + us(start), at + us(start + 50), launches=False
            )
    (finding,) = find(SingleStepDispatch, builder.build()) or ()
    # All but the 150 us from the first operator to the last, and the 100 us of callbacks after the
    # call: calling the function takes long, too.
    assert finding.summary.startswith("No operator runs for 750 µs of each step (75.0 %)")
    assert finding.saving is not None
    # Five steps: half of 750 us, and all of it with the 50 us between the operators.
    saving = finding.saving
    assert (saving.low_ns, saving.expected_ns) == (us(5 * 375), us(5 * 750))
    assert saving.high_ns == us(5 * 800)
    texts = [remedy.text for remedy in finding.remedies]
    assert texts[0].startswith("Let fit run many steps in each call")
    assert texts[1].startswith("Give each step more rows")
    # `fit` compiles the step by itself.
    assert not any("tf.function" in f"{r.text}{r.snippet}" for r in finding.remedies)


def test_long_stretches_of_host_code_are_left_alone() -> None:
    # The same in steps of 100 x 60 us: gaps of 2.4 ms.
    slow = SLOW.replace("cell 10us", "cell 600us")
    assert find(SingleStepDispatch, slow) == ()


def test_in_pytorch_it_is_launch_bound() -> None:
    assert find(SingleStepDispatch, SLOW, framework="pytorch") is None


def _thunks(runs: int, loops: int = 1) -> Trace:
    """On the CPU: runs of a program of two operations and a loop, 30 us of 50."""
    module = {"module": "jit_step(7)"}
    builder = TraceBuilder("jax")
    at = 0
    for number in range(runs):
        builder.step(number, us(at), us(at + 50))
        builder.annotation("PjitFunction(step)", us(at), us(at + 20))
        for name, start, length in (("dot.1", 20, 10), ("add.2", 40, 10)):
            symbol = Symbol(EventKind.OPERATOR, name, hlo=module)
            builder.add(symbol, us(at + start), us(at + start + length), thread="pool")
        for turn in range(loops):
            symbol = Symbol(EventKind.OPERATOR, "tanh.3", hlo=module)
            start = us(at + 30) + turn * 5_000
            builder.add(symbol, start, start + 4_000, thread="pool")
        at += 50
    return builder.build()


def test_on_the_cpu_a_run_lasts_from_its_first_operation_to_its_last() -> None:
    # Idle time of the loop belongs to the program: 20 of 50 us are the host's.
    for loops in (1, 2):
        (finding,) = find(SingleStepDispatch, _thunks(12, loops)) or ()
        assert finding.summary == (
            "No operator runs for 20.0 µs of each step (40.0 %) between programs that are"
            " dispatched one at a time (1 run per step of 30.0 µs on average)."
        )


def test_long_programs_are_left_alone() -> None:
    slow = SLOW.replace("cell 10us", "cell 100us")  # runs of 600 us, gaps of 400
    assert find(SingleStepDispatch, slow, settings={"longest_run_ns": 590_000}) == ()
    assert find(SingleStepDispatch, slow, settings={"longest_run_ns": 610_000})


def test_the_typical_duration_is_weighted_by_time() -> None:
    # Two runs of 100 us and one of 1.5 ms in each step: the long one takes most of the time:
    # (2 x 0.1 x 0.1 + 1.5 x 1.5) / 1.7 = 1.34 ms.
    mixed = drawn(
        main="pLpLpL...............",
        core="..X.X.XXXXXXXXXXXXXXX",
        modules="..M.M.MMMMMMMMMMMMMMM",
    ).replace("cell 10us", "cell 100us")
    assert find(SingleStepDispatch, mixed) == ()


def fit(step_ms: int, *, is_keras: bool = True) -> Trace:
    """Two operators in the second half of each step, which Keras's Python precedes."""
    call = f"__inference_{'multi_step_on_iterator' if is_keras else 'train_step'}_541"
    builder = TraceBuilder("tensorflow")
    for number in range(5):
        at, length = us(1000 * step_ms * number), us(1000 * step_ms)
        builder.step(number, at, at + length, name="Profiled batch" if is_keras else "train")
        builder.annotation(f"EagerExecute: {call}", at + length // 2, at + length * 9 // 10)
        for tenth in (6, 7):
            start = at + length * tenth // 10
            builder.operator("d/MatMul:MatMul", start, start + length // 20, launches=False)
    return builder.build()


def test_keras_takes_milliseconds_between_steps() -> None:
    def saves(trace: Trace) -> int:
        return sum(each.saving.expected_ns for each in find(SingleStepDispatch, trace) or ()
                   if each.saving is not None) // 5  # fmt: skip

    # From the last operator of a step to the first of the next one: 0.85 of the step's time, but
    # for the tenth after the call, which may be callbacks. 5.1 ms are too long for Keras.
    assert saves(fit(5)) == us(3750)
    assert saves(fit(6)) < us(1000)
    assert saves(fit(5, is_keras=False)) < us(1000)


def _around_a_long_program(short_runs: int) -> Trace:
    """Ten steps: short programs of 20 us, 30 us apart, then one of 4 ms and a gap of 200 us."""
    builder, at = TraceBuilder("jax"), 0
    for step in range(10):
        begin = at
        for number in range(short_runs):
            part = f"part_{number % 20}"  # less than ten calls of each
            hlo = {"module": f"jit_{part}({number})"}
            builder.annotation(f"PjitFunction({part})", us(at), us(at + 30))
            symbol = Symbol(EventKind.OPERATOR, "tanh.3", hlo=hlo)
            builder.add(symbol, us(at + 30), us(at + 50), thread="pool")
            at += 50
        builder.annotation("PjitFunction(update)", us(at), us(at + 30))
        symbol = Symbol(EventKind.OPERATOR, "dot.1", hlo={"module": "jit_update(999)"})
        builder.add(symbol, us(at + 30), us(at + 4_030), thread="pool")
        at += 4_200
        builder.step(step, us(begin), us(at))
    return builder.build()


def test_many_short_programs_beside_a_long_one() -> None:
    # After each of 151 runs the next one begins 30 us later, except for the first of each step,
    # which follows the long one: 151 x 30 = 4,530 us of 151 x 50 + 4,200 = 11,750.
    (finding,) = find(SingleStepDispatch, _around_a_long_program(151)) or ()
    assert finding.summary == (
        "No operator runs for 4.53 ms of each step (38.6 %) between programs that are dispatched"
        " one at a time (151 runs per step of 20.0 µs on average)."
    )
    # Converting inputs and reporting results take a few programs, too.
    settings = {"minimum_share": 0.01}
    assert find(SingleStepDispatch, _around_a_long_program(9), settings=settings) == ()
    assert find(SingleStepDispatch, _around_a_long_program(10), settings=settings)


def test_just_below_and_just_above_the_limit() -> None:
    assert find(SingleStepDispatch, SLOW, settings={"minimum_share": 0.41}) == ()
    assert len(find(SingleStepDispatch, SLOW, settings={"minimum_share": 0.39}) or ()) == 1


@pytest.mark.parametrize("name", ["train_steps", "train_no_step_annotation", "train_dp4_sharded"])
def test_recorded_steps_of_milliseconds_are_left_alone(corpus: Path, name: str) -> None:
    report = analyze(corpus / "local-jax-cpu" / name)
    assert "single-step-dispatch" not in {finding.rule_id for finding in report.findings}
