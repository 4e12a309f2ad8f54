from __future__ import annotations

import pytest

from tb_perfadvisor.note import Note
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.core.steps.steps import Steps
from tb_perfadvisor.signals.core.steps.windows import Side
from tb_perfadvisor.testing import TraceBuilder, draw, host, ms, operator, run_of, us
from tb_perfadvisor.testing.symbols import Symbol
from tb_perfadvisor.trace import EventKind, Trace


def steps_of(trace: Trace) -> Steps:
    return Signals(run_of(trace)).steps


def windows_ms(steps: Steps) -> list[tuple[float, float]]:
    starts, ends = steps.start_ns.tolist(), steps.end_ns.tolist()
    return [(start / 1e6, end / 1e6) for start, end in zip(starts, ends, strict=True)]


def repeated(name: str, *starts_ms: float, length_ms: float = 4) -> TraceBuilder:
    """An annotation at some times, each with an operator in it."""
    builder = TraceBuilder()
    for start in starts_ms:
        builder.annotation(name, ms(start), ms(start + length_ms))
        builder.operator("aten::mm", ms(start + 1), ms(start + 2), launches=False)
    return builder


def test_profiler_steps_come_first() -> None:
    trace = draw(
        """
        cell 1ms
        step          |7....|.....|
        main          |.ooo.|.ooo.|
        gpu 7         |..KK.|..KK.|
        gpu 0 steps   |SSSSS|SSSSS|
        """
    )
    steps = steps_of(trace)
    assert (steps.source, steps.is_inferred, steps.marked_ends) == ("ProfilerStep", False, False)
    assert steps.number.tolist() == [7, 8]
    assert windows_ms(steps) == [(0, 5), (5, 10)]


@pytest.mark.parametrize(
    ("framework", "name"), [("jax", "train"), ("tensorflow", "Profiled batch")]
)
def test_markers_of_jax_and_keras_leave_time_between_them(framework: str, name: str) -> None:
    builder = TraceBuilder(framework)  # type: ignore[arg-type]
    for number, start in enumerate((0, 10, 20)):
        builder.step(number, ms(start), ms(start + 8))
    steps = steps_of(builder.build())
    assert (steps.source, steps.marked_ends) == (name, True)
    # A window lasts until the next marker. What followed the last one was not recorded: with its
    # 8 ms the steps would seem to take 28 / 3 = 9.3 ms rather than 10.
    assert windows_ms(steps) == [(0, 10), (10, 20)]
    assert (steps.marker_end_ns / 1e6).tolist() == [8, 18]
    assert steps.window_ns == sum(steps.duration_ns.tolist()) == ms(20)
    assert [(excluded.number, excluded.reason) for excluded in steps.excluded] == [
        (2, "partial: what followed its marker is not known")
    ]


def marked_every_10_ms(count: int, *, length_ms: float) -> Steps:
    builder = TraceBuilder("jax")
    for number in range(count):
        builder.step(number, ms(10 * number), ms(10 * number + length_ms))
    return steps_of(builder.build())


def test_two_marked_steps_are_both_used() -> None:
    # A single step is less use than a last step that ends early.
    assert windows_ms(marked_every_10_ms(2, length_ms=8)) == [(0, 10), (10, 18)]


def test_last_marker_without_a_gap_is_a_whole_step() -> None:
    # 40 us of 10 ms are 0.4 %, 60 us are 0.6 %: on either side of the half percent.
    assert windows_ms(marked_every_10_ms(3, length_ms=9.96))[-1] == (20, 29.96)
    assert windows_ms(marked_every_10_ms(3, length_ms=9.94))[-1] == (10, 20)


def test_loop_with_more_steps_is_used() -> None:
    builder = TraceBuilder("jax")
    builder.step(0, ms(0), ms(2), name="eval").step(1, ms(2), ms(4), name="eval")
    for number in range(3):
        builder.step(number, ms(10 + 5 * number), ms(15 + 5 * number))
    assert steps_of(builder.build()).source == "train"


def test_device_step_line_comes_next() -> None:
    trace = draw(
        """
        cell 1ms
        step        |.....|.....|.....|
        tpu 0       |.XXX.|.XXX.|.XXX.|
        tpu 0 steps |.SSS.|.SSS.|.SSS.|
        """,
        step_line=False,
    )
    steps = steps_of(trace)
    assert (steps.source, steps.is_inferred) == ("the device's Steps line", False)
    # A trace begins with its first event: at the first marker, one cell in.
    assert windows_ms(steps) == [(0, 5), (5, 10), (10, 13)]


@pytest.mark.parametrize(
    "name",
    [
        *("train_step", "Step #12", "step_11", "[step 3]", "step=5", "training batch 3"),
        *("Batch 3", "epoch 1 step 7", "train/iter 4/100", "mini_batch:2", "iteration"),
        *("engine.execute_model", "Training Step - medium"),
    ],
)
def test_repeated_ranges_called_like_steps_mark_them(name: str) -> None:
    steps = steps_of(repeated(name, 0, 5, 10).build())
    assert steps.source.startswith("repeats of ")
    assert not steps.is_inferred
    # Ranges of 4 ms: how long the third step takes is not known.
    assert windows_ms(steps) == [(0, 5), (5, 10)]


@pytest.mark.parametrize("name", ["TransformerLayer", "forward", "aten::batch", "stepwise decay"])
def test_repeated_layers_and_phases_are_not_steps(name: str) -> None:
    assert steps_of(repeated(name, 0, 5, 10).build()).source == "none"


def test_two_repeats_are_too_few() -> None:
    assert steps_of(repeated("batch", 0, 5).build()).source == "none"


@pytest.mark.parametrize("name", ["step 0", "Batch 3", "Training Step - medium"])
def test_one_range_that_is_surely_a_step_counts(name: str) -> None:
    steps = steps_of(repeated(name, 2).operator("aten::mm", ms(3), ms(5)).build())
    assert (len(steps), steps.window_ns, steps.is_inferred) == (1, ms(4), False)


def loops(name: str, *numbers: int, pauses: tuple[int, ...] = ()) -> TraceBuilder:
    """Steps of 10 ms with these numbers; 30 ms pass before some of them."""
    builder = TraceBuilder()
    at = 0
    for place, number in enumerate(numbers):
        at += 30 * (place in pauses)
        builder.step(number, ms(at), ms(at + 10), name=f"{name} {number}")
        builder.operator("aten::mm", ms(at + 1), ms(at + 9))
        at += 10
    return builder


def test_numbers_that_begin_again_begin_another_loop() -> None:
    steps = steps_of(loops("train", *range(6), *range(6), pauses=(6,)).build())
    # Without the 30 ms between the loops.
    assert (len(steps), steps.window_ns) == (6, ms(60))
    assert [excluded.number for excluded in steps.excluded] == [0, 1, 2, 3, 4, 5]
    assert "another loop" in steps.excluded[0].reason


def test_a_short_loop_after_a_longer_one() -> None:
    steps = steps_of(loops("train", 0, 1, 2, 0, 1, pauses=(3,)).build())
    assert (steps.number.tolist(), steps.window_ns) == ([0, 1, 2], ms(30))


def test_numbers_that_begin_again_without_a_pause_are_of_one_loop() -> None:
    # Three epochs of four steps.
    steps = steps_of(loops("train", *[0, 1, 2, 3] * 3).build())
    assert (len(steps), steps.window_ns) == (12, ms(120))


def test_equal_numbers_are_no_loops() -> None:
    assert len(steps_of(loops("train", *[0] * 6).build())) == 6


def test_evaluation_between_the_steps_begins_another_loop() -> None:
    builder = loops("train", *range(8), pauses=(3,))
    for k in range(9):
        builder.step(k, ms(31 + 3 * k), ms(33 + 3 * k), name="eval")
    steps = steps_of(builder.build())
    # Steps 3 to 7, although there are more markers of the evaluation.
    assert (steps.source, steps.number.tolist(), steps.window_ns) == (
        "train",
        [3, 4, 5, 6, 7],
        ms(50),
    )


def test_the_longest_of_several_repeats_wins() -> None:
    builder = repeated("train_step", 0, 5, 10, length_ms=4)
    for start in (4, 9, 14):
        builder.annotation("val_step", ms(start), ms(start + 0.5))
    assert steps_of(builder.build()).source == "repeats of train_step"


def test_repeats_of_an_xla_module() -> None:
    trace = draw(
        """
        cell 1ms
        tpu 0         |.XX...XX...XX..|
        tpu 0 modules |.MMM..MMM..MMM.|
        """
    )
    steps = steps_of(trace)
    assert steps.source == "repeats of the XLA module jit_step"
    assert windows_ms(steps) == [(0, 5), (5, 10), (10, 13)]


def jitted(function: str, program: str = "jit_step(77)", *, other_ms: float = 0) -> TraceBuilder:
    """CPU: calls of a jitted function every 5 ms, which take 4; `other_ms` of another program.

    Each call is recorded twice, one inside the other.
    """
    builder = TraceBuilder("jax")
    for start in (0, 5, 10, 15):
        for margin in (0, 0.1):
            name = f"PjitFunction({function})"
            builder.annotation(name, ms(start + margin), ms(start + 4 - margin))
        thunk(builder, "dot.1", start + 1, start + 4, program)
        thunk(builder, "add.1", start + 4, start + 4 + other_ms, "jit_add(5)")
    return builder


def thunk(builder: TraceBuilder, name: str, start: float, end: float, program: str) -> None:
    symbol = Symbol(EventKind.OPERATOR, name, hlo={"module": program})
    if end > start:
        builder.add(symbol, ms(start), ms(end), thread="pool")


@pytest.mark.parametrize(
    ("function", "program"),
    [
        ("step", "jit_step(77)"),
        ("<lambda>", "jit__lambda(8)"),
        ("<lambda>", "jit__lambda_(8)"),
        ("_update", "jit__update(3)"),
    ],
)
def test_top_level_calls_of_a_jitted_function(function: str, program: str) -> None:
    # Whatever share of the work its program does.
    for other_ms in (0.5, 1):
        steps = steps_of(jitted(function, program, other_ms=other_ms).build())
        assert steps.source == f"repeats of PjitFunction({function})"
        assert windows_ms(steps) == [(0, 5), (5, 10), (10, 15)]
        # 1 ms of each 5 lies between two calls. What followed the last one was not recorded.
        assert [step.reason for step in steps.excluded] == [
            "partial: what followed its marker is not known"
        ]


def test_the_function_with_most_work_is_the_step() -> None:
    builder = jitted("step", "jit_step(77)")
    for start in (4, 9, 14, 19):
        builder.annotation("PjitFunction(log_norms)", ms(start), ms(start + 0.5))
    assert steps_of(builder.build()).source == "repeats of PjitFunction(step)"


@pytest.mark.parametrize("name", ["multiply", "_where", "stage"])
def test_functions_of_jax_s_library_are_no_steps(name: str) -> None:
    assert steps_of(jitted(name, f"jit_{name}(1)").build()).source == "none"


def test_what_is_called_while_a_step_is_traced_is_no_step() -> None:
    # Three calls of `layer` inside the first call of `step`, which is traced.
    builder = TraceBuilder("jax")
    for start, end in ((0, 100), (101, 104), (105, 108)):
        builder.annotation("PjitFunction(step)", ms(start), ms(end))
    for start in (10, 40, 70):
        builder.annotation("PjitFunction(layer)", ms(start), ms(start + 29))
    assert steps_of(builder.build()).source == "repeats of PjitFunction(step)"


def test_calls_every_few_microseconds_are_parts_of_a_step() -> None:
    def calls(apart_us: int, *others: str) -> Trace:
        builder = TraceBuilder("jax")
        for number in range(12):
            at = us(number * apart_us)
            builder.annotation("PjitFunction(layer)", at, at + us(100))
            for other in others:
                builder.annotation(other, at + us(110), at + us(120))
        return builder.build()

    assert steps_of(calls(490, "PjitFunction(multiply)")).source == "none"
    source = "repeats of PjitFunction(layer)"
    assert steps_of(calls(510, "PjitFunction(multiply)")).source == source
    # A program that calls nothing else is one of very short steps.
    assert steps_of(calls(490)).source == source


def test_if_the_host_runs_ahead_the_runs_of_the_program_are_steps() -> None:
    # Four calls return within 4 ms; their runs take 10 ms each.
    builder = TraceBuilder("jax")
    for number in range(4):
        builder.annotation("PjitFunction(step)", ms(number), ms(number + 0.5))
        thunk(builder, "dot.1", 10 * number + 1, 10 * number + 11, "jit_step(77)")
    steps = steps_of(builder.build())
    assert (steps.source, steps.decided_by) == ("repeats of PjitFunction(step)", Side.DEVICE)
    assert windows_ms(steps) == [(1, 11), (11, 21), (21, 31), (31, 41)]


def test_two_jitted_functions_that_are_called_faster_than_they_run() -> None:
    # Both calls of a step return within 0.2 ms; gradients take 8 ms and updates 2 ms.
    builder = TraceBuilder("jax")
    for number in range(5):
        at = us(200 * number)
        builder.annotation("PjitFunction(gradients_of)", at, at + us(80))
        builder.annotation("PjitFunction(update)", at + us(100), at + us(150))
        thunk(builder, "dot.1", 10 * number + 1, 10 * number + 9, "jit_gradients_of(7)")
        thunk(builder, "add.1", 10 * number + 9, 10 * number + 11, "jit_update(8)")
    steps = steps_of(builder.build())
    assert (steps.source, steps.decided_by) == (
        "repeats of PjitFunction(gradients_of)",
        Side.DEVICE,
    )
    # 8 ms of gradients and 2 ms of updates.
    assert windows_ms(steps) == [(1, 11), (11, 21), (21, 31), (31, 41), (41, 51)]


def test_devices_that_run_in_parallel_run_one_step() -> None:
    builder = TraceBuilder("jax")
    for number in range(4):
        builder.annotation("PjitFunction(step)", ms(5 * number), ms(5 * number + 0.5))
        for _ in range(2):
            thunk(builder, "dot.1", 5 * number + 1, 5 * number + 5, "jit_step(77)")
    steps = steps_of(builder.build())
    assert steps.source == "repeats of PjitFunction(step)"
    assert len(steps) == 4


def test_the_optimizer_closes_a_step() -> None:
    trace = draw(
        """
        cell 1ms
        main  |ooz..ooz..ooz..|
        gpu 7 |.KK...KK...KK..|
        """
    )
    steps = steps_of(trace)
    assert (steps.source, steps.is_inferred) == ("repeats of Optimizer.step#SGD.step", True)
    # From the end of one to the end of the next: three of them bound two steps.
    assert steps.number.tolist() == [1, 2]
    assert windows_ms(steps) == [(3, 8), (8, 13)]


@pytest.mark.parametrize(
    ("name", "is_step"),
    [
        ("optimizer", True),
        ("optimizer step", True),
        ("Optimizer_Step", True),
        ("optim.step", True),
        ("optimizer state", False),
        ("backward", False),
    ],
)
def test_a_range_of_the_program_around_the_optimizer_closes_a_step(
    name: str, is_step: bool
) -> None:
    steps = steps_of(repeated(name, 4, 14, 24, length_ms=2).build())
    assert (len(steps) == 2) == is_step
    if is_step:
        # The first one begins the trace: from its end to that of the next.
        assert windows_ms(steps) == [(2, 12), (12, 22)]


def periodic(cycle: int, repeats: int) -> Trace:
    """Kernels of 10 us without a gap; the first of each cycle has a different name."""
    builder = TraceBuilder()
    for index in range(cycle * repeats):
        name = "embedding" if index % cycle == 0 else "gemm"
        builder.kernel(name, us(10 * index), us(10 * index + 10))
    return builder.build()


def test_the_period_of_the_kernels() -> None:
    steps = steps_of(periodic(cycle=120, repeats=5))
    assert steps.source == "5 repetitions of 120 kernels and copies, mostly gemm"
    assert steps.is_inferred
    # Five steps of 120 x 10 us.
    assert windows_ms(steps) == [(0, 1.2), (1.2, 2.4), (2.4, 3.6), (3.6, 4.8), (4.8, 6)]


@pytest.mark.parametrize(
    ("spelling", "is_step"),
    [
        ("FSDP::pre_forward (blocks.{layer}._checkpoint_wrapped_module)", False),
        ("nn.Module: Block_{layer}", False),
        ("blocks.{layer}", False),
        ("forward of blocks.3", True),
        ("request {layer}", True),
    ],
)
def test_layers_are_not_steps(spelling: str, is_step: bool) -> None:
    """A slice of one step, such as the part of a recording that is not lost: five of its layers."""
    builder = TraceBuilder()
    for layer in range(5):
        at = 1.2 * layer
        builder.annotation(spelling.format(layer=layer + 7), ms(at), ms(at + 1))
        for index in range(120):
            name = "embedding" if index == 0 else "gemm"
            builder.kernel(name, us(1200 * layer + 10 * index), us(1200 * layer + 10 * index + 10))
    assert (steps_of(builder.build()).source != "none") == is_step


@pytest.mark.parametrize(("cycle", "is_step"), [(40, False), (99, False), (100, True)])
def test_short_period_is_not_a_step(cycle: int, is_step: bool) -> None:
    assert (steps_of(periodic(cycle=cycle, repeats=10)).source != "none") == is_step


@pytest.mark.parametrize(("repeats", "is_step"), [(2, False), (3, True)])
def test_three_repeats_of_a_hundred_kernels_are_enough(repeats: int, is_step: bool) -> None:
    assert (steps_of(periodic(cycle=100, repeats=repeats)).source != "none") == is_step


@pytest.mark.parametrize(("others", "is_step"), [(6, True), (7, False)])
def test_one_kernel_in_twenty_may_differ_from_the_other_cycles(others: int, is_step: bool) -> None:
    # 6 of 120 are 5 %.
    builder = TraceBuilder()
    for index in range(5 * 120):
        cycle, place = divmod(index, 120)
        name = "gemm" if place else "embedding"
        differs = 0 < place <= others
        tuned = f"autotuned {cycle}"
        builder.kernel(tuned if differs else name, us(10 * index), us(10 * index + 10))
    assert (steps_of(builder.build()).source != "none") == is_step


def test_window_without_steps_spans_the_work() -> None:
    trace = draw(
        """
        cell 1ms
        main  |oo......|
        gpu 7 |..KK.K..|
        """
    )
    steps = steps_of(trace)
    assert (steps.source, len(steps), steps.count) == ("none", 0, 1)
    assert (steps.window_start_ns, steps.window_end_ns) == (ms(2), ms(6))
    assert len(steps_of(TraceBuilder().build())) == 0


def excluded(trace: Trace) -> list[tuple[int, str]]:
    return [(step.number, step.reason) for step in steps_of(trace).excluded]


def test_steps_at_the_ends_without_device_work_are_partial() -> None:
    trace = draw(
        """
        cell 1ms
        step  |.....|.....|.....|.....|
        main  |.oo..|.oo..|.oo..|.oo..|
        gpu 7 |.....|..KK.|..KK.|.....|
        """
    )
    assert excluded(trace) == [
        (0, "partial: no work was recorded in it"),
        (3, "partial: no work was recorded in it"),
    ]
    assert steps_of(trace).number.tolist() == [1, 2]
    # In the middle, it is not an artifact of the recording, so it stays.
    trace = draw(
        """
        cell 1ms
        step  |.....|.....|.....|
        main  |.oo..|.oo..|.oo..|
        gpu 7 |..KK.|.....|..KK.|
        """
    )
    assert excluded(trace) == []


def test_a_last_step_that_lost_events_of_its_launches_is_partial() -> None:
    # Four launches a step; the last step has the kernels of two of them.
    builder = TraceBuilder()
    for number in range(3):
        begin = ms(10 * number)
        builder.step(number, begin, begin + ms(10))
        for call in range(4):
            key, at = f"{number}.{call}", begin + ms(2 * call)
            builder.launch(at, at + us(10), key=key)
            if number < 2 or call < 2:
                builder.kernel("gemm", at + us(20), at + ms(1), launched_by=key)
    assert excluded(builder.build()) == [(2, "partial: its device events were not recorded")]


def test_the_step_in_which_a_file_breaks_off_is_partial() -> None:
    def cpu_steps(*notes: Note) -> Trace:
        builder = TraceBuilder()
        for number, operators in enumerate((10, 10, 3)):
            builder.step(number, ms(20 * number), ms(20 * number + 20))
            for index in range(operators):
                at = ms(20 * number + index)
                builder.operator("aten::mm", at, at + us(500), launches=False)
        for note in notes:
            builder.note(note)
        return builder.build()

    cut = cpu_steps(Note("truncated-file", "warning", "The file breaks off."))
    assert excluded(cut) == [(2, "partial: the file breaks off in it")]
    assert steps_of(cut).window_end_ns == ms(40)
    # In a whole file, a step with 3 of 10 operators holds too little as well.
    reason = "partial: it holds 3 operators, 30.0 % of what others have"
    assert excluded(cpu_steps()) == [(2, reason)]


def test_a_step_that_other_programs_hold_up_makes_no_other_a_fragment() -> None:
    builder = TraceBuilder()
    for number, took in enumerate((us(500), ms(12), us(500))):
        at = ms(20 * number)
        builder.step(number, at, at + ms(20))
        builder.operator("aten::mm", at, at + took, launches=False)
    assert excluded(builder.build()) == []


COMPILES_ONCE = """
    cell 1ms
    step  |..........|.....|.....|.....|
    main  |ccccccoo..|oo...|oo...|oo...|
    gpu 7 |.......KKK|.KKKK|.KKKK|.KKKK|
"""


def test_a_first_step_that_compiles_is_warm_up() -> None:
    steps = steps_of(draw(COMPILES_ONCE))
    assert [(step.number, step.reason) for step in steps.excluded] == [
        (0, "warm-up: it compiles, the others don't")
    ]
    assert windows_ms(steps) == [(10, 15), (15, 20), (20, 25)]


def test_a_step_that_loads_device_code_is_warm_up() -> None:
    loads = {"c": host("cuModuleLoadData", EventKind.RUNTIME)}
    assert excluded(draw(COMPILES_ONCE, legend=loads)) == [
        (0, "warm-up: it loads device code, the others don't")
    ]


def test_a_step_that_captures_a_graph_is_warm_up() -> None:
    captures = {"c": host("cudaStreamBeginCapture", EventKind.RUNTIME)}
    assert excluded(draw(COMPILES_ONCE, legend=captures)) == [
        (0, "warm-up: it captures a graph, the others don't")
    ]


def test_slow_step_stays_as_an_outlier() -> None:
    # Twice the median without a reason; and if all three steps compile, the program always does.
    quiet = {"c": operator("aten::mm", launches=False)}
    assert excluded(draw(COMPILES_ONCE, legend=quiet)) == []
    all_compile = COMPILES_ONCE.replace("|oo...", "|cco..").replace("|.KKKK", "|..KKK")
    assert excluded(draw(all_compile)) == []


def test_steps_of_twice_the_median_are_warm_up() -> None:
    def first_step(cells: int) -> Trace:
        rest = "." * (cells - 5)
        return draw(
            f"""
            cell 1ms
            step  |.....{rest}|.....|.....|
            main  |ccoo.{rest}|oo...|oo...|
            gpu 7 |..KKK{rest}|.KKKK|.KKKK|
            """
        )

    assert excluded(first_step(9)) == []  # 9 < 2 x 5
    assert len(excluded(first_step(10))) == 1


def test_windows_partition_time() -> None:
    steps = steps_of(draw(COMPILES_ONCE))
    assert steps.start_ns[1:].tolist() == steps.end_ns[:-1].tolist()
    assert steps.window_start_ns == steps.start_ns[0]
    assert steps.window_end_ns == steps.end_ns[-1]


RUN = {"F": host("FunctionRun"), "f": host("FunctionRun"), "o": operator("MatMul:MatMul")}


def function_steps(text: str, framework: str = "tensorflow") -> Steps:
    return steps_of(draw(text, legend=RUN, framework=framework))  # type: ignore[arg-type]


def test_a_single_run_of_a_function_is_a_step() -> None:
    # As in `sagemaker-debugger/tfprofiler_timeline`, between eager operators that are no step.
    steps = function_steps("cell 1ms\nmain |oooFFFFFFFFo|\npool |....oooo....|")
    assert steps.source == "runs of a TensorFlow function"
    assert (steps.is_inferred, windows_ms(steps)) == (True, [(3, 11)])


def test_short_runs_are_of_other_functions() -> None:
    steps = function_steps("cell 1ms\nmain |fFFFFFFFF.FFFFFFF.f|\npool |..ooo......oo......|")
    assert windows_ms(steps) == [(1, 10), (10, 17)]
    # Without a function that takes nearly all of the time, no run is the step.
    steps = function_steps("cell 1ms\nmain |FFFF.f.f.f.f.f.f|\npool |ooo.............|")
    assert steps.source == "none"


def test_a_single_call_of_a_function_is_a_step() -> None:
    """As recorded with TensorFlow 2.21, where `FunctionRun` ends before the first operator."""
    call = host("EagerExecute: __inference_train_step_249")
    trace = draw(
        """
        cell 1ms
        main |oo.CCCCCCCC.|
        main |....F.......|
        pool |......oooo..|
        """,
        legend={**RUN, "C": call},
        framework="tensorflow",
    )
    assert windows_ms(steps_of(trace)) == [(3, 11)]


@pytest.mark.parametrize("framework", ["jax", "pytorch"])
def test_only_tensorflow_runs_functions(framework: str) -> None:
    assert len(function_steps("cell 1ms\nmain |FFFF|\npool |oooo|", framework)) == 0


def test_on_a_device_a_single_call_ends_with_its_work() -> None:
    steps = function_steps("cell 1ms\nmain |FF..|\nmain |o...|\ngpu 7 |.KKK|")
    assert windows_ms(steps) == [(0, 4)]
