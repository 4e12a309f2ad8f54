"""Without any marker, a step is what the device does again and again."""

from __future__ import annotations

import pytest

from tb_perfadvisor.engine.profile_notes import profile_notes
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.core.steps.steps import Steps
from tb_perfadvisor.signals.recording.completeness import is_start_up
from tb_perfadvisor.testing import TraceBuilder, ms, run_of, us
from tb_perfadvisor.trace import CopyDirection

Work = tuple[str, float]
"""A kernel and its time in ms; `to device` and `to host` are copies."""
COPIES = {"to device": CopyDirection.HOST_TO_DEVICE, "to host": CopyDirection.DEVICE_TO_HOST}
LAYER = [("norm", 0.1), ("qkv", 0.3), ("mlp", 0.4)]
FORWARD = [("embedding", 0.1), *LAYER * 12, ("logits", 0.8)]


class Program:
    """Launches work, which two streams may run, and waits for it.

    A launch takes 10 us, and the work begins 10 us later if its stream is free.
    """

    def __init__(self) -> None:
        self.builder = TraceBuilder().device("NVIDIA A100-SXM4-80GB")
        self.at_ns = 0
        self.free_ns: dict[int, int] = {}
        self.count = 0

    def run(self, *work: Work, streams: tuple[int, ...] = (7,), waits: bool = True) -> Program:
        """Launch work on streams in turn, wait for it, and pause for 1 ms."""
        for place, (name, length_ms) in enumerate(work):
            self.launch(name, ms(length_ms), streams[place % len(streams)])
        if waits:
            self.wait()
        self.at_ns += ms(1)
        return self

    def launch(self, name: str, length_ns: int, stream: int = 7, call_ns: int = us(10)) -> None:
        """Launch a kernel or a copy."""
        key, self.count = str(self.count), self.count + 1
        self.builder.launch(self.at_ns, self.at_ns + call_ns, key=key)
        self.at_ns += call_ns
        begin = max(self.at_ns + us(10), self.free_ns.get(stream, 0))
        end = self.free_ns[stream] = begin + length_ns
        if name in COPIES:
            self.builder.copy(COPIES[name], begin, end, stream=stream, launched_by=key)
        else:
            self.builder.kernel(name, begin, end, stream=stream, launched_by=key)

    def wait(self) -> None:
        """Wait until all work is done."""
        done = max(self.at_ns, *self.free_ns.values())
        self.builder.synchronize(self.at_ns, done, name="cudaDeviceSynchronize")
        self.at_ns = done

    def signals(self) -> Signals:
        return Signals(run_of(self.builder.build()))

    def steps(self) -> Steps:
        return self.signals().steps


def started() -> Program:
    """A program that has copied its parameters in 80 ms, and drawn some random numbers."""
    program = Program()
    for _ in range(20):
        program.run(("to device", 3))
    return program.run(("distribution", 0.1))


def test_start_up_is_no_part_of_the_five_repetitions_after_it() -> None:
    program = started()
    begin_ns = program.at_ns
    for _ in range(5):
        program.run(("seed", 2), ("fit", 8))
    signals = program.signals()
    steps = signals.steps
    assert steps.source == "5 repetitions of 2 kernels and copies, mostly fit"
    assert steps.is_inferred
    # Launched within 20 us, 10 ms of work from 20 us on, 1 ms of pause; the last pause is unknown.
    assert steps.duration_ns.tolist() == [ms(11.02)] * 4
    assert steps.start_ns[0] == begin_ns
    assert [step.number for step in steps.excluded] == [4]
    assert not is_start_up(signals)
    (note,) = (note for note in profile_notes(signals) if note.id == "partly-covered")
    # Copies from 0.02 ms on, 4.02 ms each; 1.12 ms for a kernel and 0.02 ms before `seed`.
    assert note.message == (
        "The steps that were found cover 44.1 ms of the 136 ms that were recorded (32.5 %). The "
        "81.5 ms before them are start-up, and are not analyzed."
    )
    assert note.severity == "info"


def test_other_work_before_the_steps_is_no_start_up() -> None:
    program = Program().run(("encoder", 80))
    for _ in range(5):
        program.run(("seed", 2), ("fit", 8))
    (note,) = (note for note in profile_notes(program.signals()) if note.id == "partly-covered")
    assert note.severity == "warning"
    assert note.message.endswith("What runs in the rest is not analyzed.")


def test_repetitions_may_take_longer_and_longer() -> None:
    program = Program()
    for length in range(1, 7):
        program.run(("sort", 1), ("search", 2 * length))
    # 2 x length + 1 ms of work, 1 ms of pause, and 0.02 ms until the first work starts.
    assert program.steps().duration_ns.tolist() == [ms(2.02 + 2 * k) for k in range(1, 6)]


def test_streams_may_run_the_work_in_another_order() -> None:
    program = Program()
    for number in range(6):
        # On the second stream, `reduce` ends before or after `scan` on the first.
        program.run(("scan", 3), ("reduce", 1 + number % 4), ("merge", 1), streams=(7, 8))
    steps = program.steps()
    assert steps.source == "6 repetitions of 3 kernels and copies, mostly scan"
    assert len(steps) == 5


def test_a_period_begins_with_its_input_and_ends_with_its_result() -> None:
    program = Program().run(("distribution", 0.1))
    begin_ns = program.at_ns
    for _ in range(6):
        program.run(("to device", 1), ("kmeans", 0.2), ("to host", 1))
    steps = program.steps()
    assert steps.start_ns[0] == begin_ns
    # 2.2 ms of work, which starts after 0.02 ms, and 1 ms of pause.
    assert steps.duration_ns.tolist() == [ms(3.22)] * 5


@pytest.mark.parametrize("passes", [1, 2])
def test_the_layers_of_a_model_are_no_steps(passes: int) -> None:
    program = started()
    for _ in range(passes):
        program.run(*FORWARD)
    assert program.steps().source == "none"


@pytest.mark.parametrize("layers_wait", [False, True])
def test_the_step_is_the_pass_through_all_layers(layers_wait: bool) -> None:
    program = Program()
    for _ in range(6):
        program.launch("embedding", ms(0.1))
        for _ in range(12):
            for name, length_ms in LAYER:
                program.launch(name, ms(length_ms))
            if layers_wait:  # for the number of tokens of each expert
                program.wait()
        program.run(("logits", 0.8))
    # An embedding, 12 layers of 3 kernels, and the logits.
    assert program.steps().source == "6 repetitions of 38 kernels and copies, mostly mlp"


@pytest.mark.parametrize("layers", [5, 40])
def test_what_a_pass_runs_besides_its_layers_needs_no_name_of_its_own(layers: int) -> None:
    program = Program()
    for _ in range(6):
        program.run(("norm", 0.1), *LAYER * layers, ("mlp", 0.4))
    assert program.steps().source.startswith(f"6 repetitions of {3 * layers + 2} kernels")


@pytest.mark.parametrize(("passes", "is_found"), [(2, False), (3, True)])
def test_two_repetitions_may_be_chance(passes: int, is_found: bool) -> None:
    program = started()
    for _ in range(passes):
        program.run(("embedding", 0.1), *LAYER * 40, ("logits", 0.8))
    assert (program.steps().source != "none") == is_found


@pytest.mark.parametrize(("repeats", "is_found"), [(4, False), (5, True)])
def test_short_periods_have_to_repeat_more_often(repeats: int, is_found: bool) -> None:
    program = Program()
    for _ in range(repeats):
        program.run(("seed", 2), ("fit", 8))
    assert (program.steps().source != "none") == is_found


def test_short_periods_without_an_exchange_with_the_host_may_be_layers() -> None:
    program = Program()
    for _ in range(6):
        program.run(("norm", 2), ("mlp", 8), waits=False)
    assert program.steps().source == "none"


@pytest.mark.parametrize(
    ("blocks", "begins_with", "is_found"),
    [(19, [], True), (14, [], False), (19, ["embedding"], False)],
)
def test_passes_on_the_host_are_all_that_runs(
    blocks: int, begins_with: list[str], is_found: bool
) -> None:
    block = ["conv", "norm", "relu"]
    names = begins_with + [*block, "pool", *block * (blocks - 1)] * 6
    builder = TraceBuilder()
    for place, name in enumerate(names):
        builder.operator(name, us(200 * place), us(200 * place + 190), launches=False)
    source = Signals(run_of(builder.build())).steps.source
    expected = "6 repetitions of 58 operators" if is_found else "none"
    assert source.startswith(expected)


def test_what_happens_once_interrupts_no_loop() -> None:
    program = Program()
    for number in range(12):
        program.run(("seed", 2), ("fit", 8))
        if number == 5:
            program.run(("checkpoint", 4))
    steps = program.steps()
    assert steps.source == "12 repetitions of 2 kernels and copies, mostly fit"
    # The sixth one lasts 5.02 ms longer.
    assert steps.duration_ns.tolist() == [*[ms(11.02)] * 5, ms(16.04), *[ms(11.02)] * 5]


def test_what_recurs_makes_a_longer_period() -> None:
    program = Program()
    for _ in range(6):
        for _ in range(12):
            program.run(("seed", 2), ("fit", 8))
        program.run(("validate", 9))
        program.at_ns += ms(5)
    # Twelve rounds of two kernels, and another one.
    assert program.steps().source == "6 repetitions of 25 kernels and copies, mostly fit"


@pytest.mark.parametrize(("encoder_kernels", "is_found"), [(1, True), (2, False)])
def test_a_loop_covers_nearly_all_work(encoder_kernels: int, is_found: bool) -> None:
    # 5 rounds of 2 kernels: 10 of 11 are 0.91, 10 of 12 are 0.83, and their time is half at most.
    program = Program().run(*[("encoder", 50)] * encoder_kernels)
    for _ in range(5):
        program.run(("seed", 2), ("fit", 8))
    assert (program.steps().source != "none") == is_found


def test_a_last_period_that_the_host_is_ahead_of_has_no_end() -> None:
    program = Program()
    for _ in range(6):
        program.run(("to device", 1), ("fit", 8), waits=False)
    steps = program.steps()
    assert steps.source.startswith("6 repetitions of 2 ")
    assert len(steps) == 5
    # The device is busy without a pause.
    assert steps.pace.device_ns == ms(9)


@pytest.mark.parametrize(("first_launch_ms", "is_warm_up"), [(2, False), (6, True)])
def test_the_first_launches_of_a_program_are_warm_up(
    first_launch_ms: float, is_warm_up: bool
) -> None:
    program = Program()
    program.launch("fit", ms(8), call_ns=ms(first_launch_ms))
    program.wait()
    program.at_ns += ms(1)
    for _ in range(6):
        program.run(("fit", 8))
    # 11 or 15 ms instead of 9.02, and a quarter more would be 11.3.
    reasons = [step.reason for step in program.steps().excluded if step.number == 0]
    assert bool(reasons) == is_warm_up


def test_operators_inside_of_the_framework_s_calls_repeat_too() -> None:
    """Six steps of 120 eager operators without marks. Each step begins by reading a variable."""
    builder = TraceBuilder("tensorflow")
    for number in range(6):
        for call in range(120):
            at = us(20_000 * number + 100 * call)
            builder.annotation("TFE_Py_FastPathExecute_C", at, at + us(60))
            name = "MatMul" if call else "ReadVariableOp"
            builder.operator(f"EagerLocalExecute: {name}", at + us(10), at + us(50))
    steps = Signals(run_of(builder.build())).steps
    assert steps.source.startswith("6 repetitions of 120 operators")
    assert (steps.end_ns[:-1] - steps.start_ns[:-1]).tolist() == [us(20_000)] * 5
