"""A step is the work that it launched, however far the host runs ahead."""

from __future__ import annotations

import pytest

from tb_perfadvisor import analyze
from tb_perfadvisor.engine.profile_notes import profile_notes
from tb_perfadvisor.signals import Cause, Signals
from tb_perfadvisor.signals.core.steps.steps import Steps
from tb_perfadvisor.signals.core.steps.windows import Side
from tb_perfadvisor.testing import TraceBuilder, ms, run_of, us
from tb_perfadvisor.testing.symbols import Symbol
from tb_perfadvisor.trace import EventKind, KernelFamily, Precision

RUN_US = 790
STEPS = 8


def signals_of(builder: TraceBuilder) -> Signals:
    return Signals(run_of(builder.build()))


def steps_of(builder: TraceBuilder) -> Steps:
    return signals_of(builder).steps


def mean_ns(steps: Steps) -> float:
    return steps.window_ns / len(steps)


# --- One program, recorded in three ways ----------------------------------------------------------


def tpu_program(*, waits: bool, marked: bool) -> TraceBuilder:
    """Eight runs of 790 us, dispatched in 30 us each. The core starts 3 us after a dispatch."""
    builder = TraceBuilder("jax", host="host0", path="host0")
    builder.device("TPU v5e", kind="tpu", memory_bytes=16 * 2**30)
    host, core = 0, 0
    for number in range(STEPS):
        builder.launch(
            host + us(2), host + us(30), name="DoEnqueueProgram", thread="python", key=str(number)
        )
        begin = max(core, host + us(33))
        core = begin + us(RUN_US)
        builder.xla_op(
            "fusion.1",
            begin,
            core,
            text="%fusion.1 = f32[8,128]{1,0:T(8,128)} fusion(f32[8,128]{1,0:T(8,128)} %x)",
            family=KernelFamily.ELEMENTWISE,
            precision=Precision.BITS_32,
            launched_by=str(number),
            module="jit_step(1)",
        )
        builder.derived("modules", "jit_step(1)", begin, core, launched_by=str(number))
        end = core + us(2) if waits else host + us(35)
        if waits:
            builder.synchronize(host + us(31), end, thread="python")
        if marked:
            builder.step(number, host, end, thread="python")
        host = end
    return builder


WAYS = {
    "synchronous": tpu_program(waits=True, marked=True),
    "dispatching ahead": tpu_program(waits=False, marked=True),
    "without markers": tpu_program(waits=False, marked=False),
}


@pytest.mark.parametrize("way", WAYS)
def test_three_ways_to_record_a_program_give_the_same_step_time(way: str) -> None:
    steps = steps_of(WAYS[way])
    assert len(steps) == STEPS
    # 790 us; if the host waits, 33 us for the dispatch and 2 for the return are added.
    expected_us = 825 if way == "synchronous" else 790
    assert mean_ns(steps) == pytest.approx(us(expected_us), rel=0.01)


def test_ahead_of_the_device_the_same_is_found_with_and_without_markers() -> None:
    marked, bare = (
        [ranked.rule.id for ranked in analyze(run_of(WAYS[way].build())).findings]
        for way in ("dispatching ahead", "without markers")
    )
    assert marked == bare


def test_the_device_is_busy_all_the_time() -> None:
    signals = signals_of(WAYS["dispatching ahead"])
    assert signals.attribution.share(Cause.COMPUTE_32) == 1.0
    assert signals.steps.decided_by is Side.DEVICE
    # The host dispatches a step every 35 us.
    assert (signals.steps.pace.host_ns, signals.steps.pace.device_ns) == (us(35), us(790))
    assert signals.steps.owner[signals.device.rows].tolist() == list(range(STEPS))


# --- Markers that are no steps --------------------------------------------------------------------


def torch_steps(*work_ms: float, every_ms: int = 10, first: int = 0) -> TraceBuilder:
    """One kernel for each step; a step without work launches nothing."""
    builder = TraceBuilder()
    for place, length_ms in enumerate(work_ms):
        add_step(builder, first + place, ms(every_ms * place), length_ms, every_ms)
    return builder


def add_step(
    builder: TraceBuilder, number: int, begin: int, work_ms: float, every_ms: float
) -> None:
    builder.step(number, begin, begin + ms(every_ms))
    if work_ms:
        key = f"step {number}"
        builder.launch(begin + us(10), begin + us(20), key=key)
        builder.kernel("gemm", begin + us(30), begin + us(30) + ms(work_ms), launched_by=key)


def reasons(steps: Steps) -> dict[int, str]:
    return {step.number: step.reason for step in steps.excluded}


def test_a_marker_that_is_open_when_the_recording_ends_is_no_step() -> None:
    """As in the recording of a training that ends: the last marker lasts 18 us."""
    whole, stub = torch_steps(8, 8, 8, 8, 8), torch_steps(8, 8, 8, 8, 8)
    stub.step(5, ms(50), ms(50) + us(18))
    assert mean_ns(steps_of(stub)) == mean_ns(steps_of(whole)) == ms(10)
    assert reasons(steps_of(stub)) == {5: "partial: no work was recorded in it"}


def test_a_first_marker_that_holds_the_end_of_a_step_is_no_step() -> None:
    builder = TraceBuilder()
    add_step(builder, 0, 0, 1, 2)
    for number in range(1, 5):
        add_step(builder, number, ms(10 * number - 8), 8, 10)
    steps = steps_of(builder)
    assert mean_ns(steps) == ms(10)
    assert reasons(steps) == {
        0: "partial: it holds 1.00 ms of work, 12.5 % of what others have",
    }


def test_half_of_the_work_of_the_others_is_a_step() -> None:
    # 3.9 of 8 ms are less than half, 4.1 are more.
    assert len(steps_of(torch_steps(8, 8, 8, 3.9))) == 3
    assert len(steps_of(torch_steps(8, 8, 8, 4.1))) == 4
    # Steps in the middle are whole. Where they hold as little, so may the last one.
    assert len(steps_of(torch_steps(8, 3.9, 8, 8, 3.9))) == 5


def test_the_time_of_steps_that_were_not_recorded_belongs_to_no_step() -> None:
    # Steps 2 to 4 are missing: 30 ms pass between the markers of steps 1 and 5.
    builder = torch_steps(8, 8)
    for place, number in enumerate((5, 6, 7)):
        add_step(builder, number, ms(50 + 10 * place), 8, 10)
    steps = steps_of(builder)
    assert steps.number.tolist() == [5, 6, 7]
    assert mean_ns(steps) == ms(10)
    assert set(reasons(steps)) == {0, 1}


def test_numbers_may_have_any_distance() -> None:
    builder = TraceBuilder()
    for place in range(4):
        add_step(builder, 10 * place, ms(10 * place), 8, 10)
    assert len(steps_of(builder)) == 4


# --- Kinds ----------------------------------------------------------------------------------------


def accumulation(count: int, rounds: int = 4) -> TraceBuilder:
    """Forward and backward passes of 8 ms; each fourth one also updates, for 2 ms."""
    builder, begin = TraceBuilder(), 0
    for number in range(count):
        updates = number % rounds == rounds - 1
        length = 12 if updates else 10
        builder.operator("MmBackward0", begin + ms(4), begin + ms(5), launches=False)
        if updates:
            builder.annotation("Optimizer.step#SGD.step", begin + ms(10), begin + ms(11))
        add_step(builder, number, begin, 10 if updates else 8, length)
        begin += ms(length)
    return builder


def test_accumulation_is_a_cycle_of_two_kinds() -> None:
    steps = steps_of(accumulation(8))
    assert len(steps) == 8
    assert steps.period == 4
    assert steps.kind_names == ("accumulates gradients", "updates the parameters")
    assert steps.kind.tolist() == [0, 0, 0, 1] * 2
    # (3 x 10 + 12) / 4.
    assert mean_ns(steps) == us(10_500)


def test_the_cycle_is_named() -> None:
    notes = profile_notes(signals_of(accumulation(8)))
    (note,) = (note for note in notes if note.id == "step-kinds")
    assert note.message == (
        "Every 4th step also updates the parameters: 12.0 ms instead of 10.0 ms. A cycle of 4 "
        "steps takes 42.0 ms."
    )


def test_every_third_step_is_longer() -> None:
    steps = steps_of(torch_steps(4, 4, 8, 4, 4, 8, 4, 4, 8))
    assert (steps.period, steps.kind.tolist()) == (3, [0, 0, 1] * 3)


def on_the_cpu(*work_ms: float, marked_ms: float = 0) -> Steps:
    """PyTorch steps that compute for these times, each with 1 ms of other code."""
    builder, at = TraceBuilder(), 0
    for number, work in enumerate(work_ms):
        end = at + ms(work)
        builder.step(number, at, end + ms(1)).operator("aten::mm", at, end, launches=False)
        at = end + ms(1)
    if marked_ms:
        builder.step(len(work_ms), at, at + ms(marked_ms))
    return Signals(run_of(builder.build())).steps


def test_on_the_cpu_the_work_of_a_step_is_its_operators() -> None:
    steps = on_the_cpu(10, 10, 40, 10, 10, 40, 10, 10, 40)
    assert (steps.period, steps.kind.tolist()) == (3, [0, 0, 1] * 3)
    assert on_the_cpu(10, 13, 10, 13).period == 0, "two longer ones may be chance"
    cut_off = on_the_cpu(10, 10, 10, marked_ms=0.02)
    assert cut_off.number.tolist() == [0, 1, 2]
    assert [step.reason for step in cut_off.excluded] == ["partial: no work was recorded in it"]


def test_equal_steps_are_of_one_kind() -> None:
    assert steps_of(torch_steps(8, 8.1, 7.9, 8, 8.2, 8)).kind_names == ("",)


# --- Keras ----------------------------------------------------------------------------------------


def keras_batch(*, marked: bool = True) -> TraceBuilder:
    """One batch on a GPU: its work ends at 40 ms, and the callback's last operator at 190."""
    builder = TraceBuilder("tensorflow")
    if marked:
        builder.step(1, 0, ms(195), name="Profiled batch")
    else:
        # Keras 2 stops the profiler inside its marker, which is not recorded then.
        builder.derived("steps", "0", ms(4), ms(190), step=0)
    call = "EagerExecute: __inference_multi_step_on_iterator_541"
    builder.annotation(call, ms(1), ms(20))
    builder.launch(ms(2), ms(3), key="train")
    builder.kernel("gemm", ms(4), ms(40), launched_by="train")
    builder.annotation("EagerExecute: WriteSummary", ms(60), ms(180))
    builder.launch(ms(185), ms(186), key="callback")
    builder.kernel("LogicalAnd", ms(189), ms(190), launched_by="callback")
    return builder


def test_one_batch_of_keras_is_the_work_of_its_function() -> None:
    signals = signals_of(keras_batch())
    steps = signals.steps
    assert (len(steps), steps.window_ns) == (1, ms(40))
    assert signals.trace.name(int(steps.own(signals.device.rows)[-1])) == "gemm"


def test_the_line_of_steps_that_tensorflow_derives_swallows_callbacks() -> None:
    steps = steps_of(keras_batch(marked=False))
    assert steps.source == "runs of a TensorFlow function"
    # From the call, at 1 ms, to the end of its work.
    assert (len(steps), steps.window_ns) == (1, ms(39))


# --- XLA on the CPU -------------------------------------------------------------------------------


@pytest.mark.parametrize("marked", [True, False])
def test_threads_of_xla_on_the_cpu_are_a_device(marked: bool) -> None:
    """As recorded with JAX 0.10: eight calls return within 2 ms, their runs take 83 ms each."""
    builder = TraceBuilder("jax")
    symbol = Symbol(EventKind.OPERATOR, "dot.1", hlo={"module": "jit_step"})
    for number in range(STEPS):
        call = us(200 * number)
        if marked:
            builder.step(number, call, call + us(190))
        builder.annotation("PjitFunction(step)", call + us(10), call + us(180))
        begin = ms(2) + ms(83) * number
        builder.add(symbol, begin, begin + ms(83), thread="tf_XLAPjRtCpuClient/1")
    steps = steps_of(builder)
    assert len(steps) == STEPS
    assert mean_ns(steps) == ms(83)
    assert (steps.decided_by, steps.linked_by_order) == (Side.DEVICE, "jit_step")


@pytest.mark.parametrize(
    ("ahead", "source"), [(0, "repeats of PjitFunction(step)"), (1, "runs of jit_step")]
)
def test_runs_of_cpu_programs_are_steps_if_several_follow_the_last_call(
    ahead: int, source: str
) -> None:
    """Five calls of 1 ms every 10 ms. The first recorded run belongs to a call before them."""
    builder = TraceBuilder("jax")
    symbol = Symbol(EventKind.OPERATOR, "dot.1", hlo={"module": "jit_step"})
    for number in range(5):
        builder.annotation("PjitFunction(step)", ms(10 + 10 * number), ms(11 + 10 * number))
    # The last call returns at 51 ms. Its run starts at 52 ms, or behind another one at 62 ms.
    for number in range(6 + ahead):
        builder.add(
            symbol, ms(2 + 10 * number), ms(8 + 10 * number), thread="tf_XLAPjRtCpuClient/1"
        )
    assert steps_of(builder).source == source


# --- Incomplete recordings ------------------------------------------------------------------------


def notes_of(builder: TraceBuilder) -> dict[str, str]:
    return {note.id: note.message for note in profile_notes(signals_of(builder))}


def test_inferred_steps_that_cover_little_of_the_recording_say_so() -> None:
    builder = TraceBuilder()
    for place in range(5):
        begin = ms(10 * place)
        builder.annotation("train_step", begin, begin + ms(10))
        builder.launch(begin, begin + us(5), key=str(place))
        builder.kernel("gemm", begin + us(10), begin + ms(9), launched_by=str(place))
    assert "partly-covered" not in notes_of(builder)
    builder.kernel("gemm", ms(60), ms(200), launched_by="")
    # 50 of 200 ms, from the first kernel to the last.
    assert notes_of(builder)["partly-covered"] == (
        "The steps that were found cover 50.0 ms of the 200 ms that were recorded (25.0 %). What "
        "runs in the rest is not analyzed."
    )


@pytest.mark.parametrize("has_product", [True, False])
def test_a_training_step_without_products_is_a_piece(has_product: bool) -> None:
    """As recorded: dropout and casts of BERT, with the names of attention and of gradients."""
    builder = TraceBuilder("tensorflow").step(0, 0, ms(20))
    names = ("encoder/layer_1/self_attention/dropout/Mul:Mul", "gradient_tape/encoder/Tile:Tile")
    for place, name in enumerate(names):
        builder.operator(name, ms(place), ms(place + 1), key=name)
        family = KernelFamily.MATMUL if has_product and place else KernelFamily.ELEMENTWISE
        begin = ms(place) + us(20)
        builder.kernel("kernel", begin, begin + us(900), launched_by=name, family=family)
    message = notes_of(builder).get("piece-of-a-step")
    if has_product:
        assert message is None
    else:
        assert message is not None
        assert "no matrix product" in message


def test_what_runs_after_the_step_is_named() -> None:
    # The function ends at 20 ms on the host, the callback takes 120 ms from 60 on.
    assert notes_of(keras_batch())["after-the-step"] == (
        "After the step: TensorBoard callback, 120 ms. It is not part of the step."
    )
