from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tb_perfadvisor.engine.analyze import analyze_run
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.engine.profile_notes import profile_notes
from tb_perfadvisor.engine.trust import trust_in
from tb_perfadvisor.machine.facts import Facts, Recording
from tb_perfadvisor.note import Note
from tb_perfadvisor.signals import Need, Options, Signals, reference_worker
from tb_perfadvisor.signals.recording.hints import hint_for
from tb_perfadvisor.signals.workload.workload import workload
from tb_perfadvisor.testing import TraceBuilder, draw, ms, run_of, us
from tb_perfadvisor.trace import EventKind, Framework, Trace


def notes_of(trace: Trace) -> dict[str, Note]:
    return {note.id: note for note in profile_notes(Signals(run_of(trace)))}


def steps(count: int, device: str = "NVIDIA H100 80GB HBM3") -> Trace:
    builder = TraceBuilder().device(device)
    for number in range(count):
        builder.step(number, ms(5 * number), ms(5 * number + 5))
        builder.kernel("gemm", ms(5 * number), ms(5 * number + 4))
    return builder.build()


def test_good_profile_has_no_notes() -> None:
    assert notes_of(steps(3)) == {}


def test_no_steps() -> None:
    note = notes_of(TraceBuilder().kernel("gemm", 0, ms(1)).build())
    assert note["no-steps"].severity == "warning"
    assert "prof.step()" in note["no-steps"].remedy


def test_few_steps() -> None:
    assert notes_of(steps(1))["few-steps"].message.startswith("One step is analyzed: ")
    assert notes_of(steps(2))["few-steps"].message.startswith("2 steps are analyzed: ")
    assert "few-steps" not in notes_of(steps(3))


def test_inferred_steps() -> None:
    trace = draw(
        """
        cell 1ms
        main  |ooz..ooz..ooz..ooz..|
        gpu 7 |.KK...KK...KK...KK..|
        """
    )
    note = notes_of(trace)["inferred-steps"]
    assert "inferred from repeats of Optimizer.step#SGD.step." in note.message
    assert "prof.step()" in note.remedy


def test_a_listed_device_without_events() -> None:
    # The program may not use it at all.
    trace = TraceBuilder().device("NVIDIA H100 80GB HBM3").step(0, 0, ms(2)).build()
    note = notes_of(trace)["no-device-events"]
    assert note.severity == "error"
    assert "CUPTI" in note.remedy


def test_only_the_front_end_of_a_server() -> None:
    frame = "vllm/v1/engine/async_llm.py(640): _run_output_handler"
    trace = (
        TraceBuilder()
        .device("NVIDIA H100 80GB HBM3")
        .host(EventKind.PYTHON, frame, 0, ms(2))
        .build()
    )
    (note,) = profile_notes(Signals(run_of(trace)))
    assert note.id == "server-front-end"
    assert "profiles of the workers" in note.remedy
    program = workload(Signals(run_of(trace)))
    assert "profile of a worker" in hint_for(Need.DEVICE_EVENTS, program)
    assert hint_for(Need.COPIES, program) == ""
    assert analyze_run(run_of(trace), Config()).headline.startswith(
        "Do not act on this recording: it shows the front end of a server, not the model. "
        "Look at the profiles of the workers"
    )


def test_unknown_device() -> None:
    assert "'Fancy 9000'" in notes_of(steps(3, device="Fancy 9000"))["unknown-device"].message
    nameless = TraceBuilder().kernel("gemm", 0, ms(1)).build()
    assert "does not name the device" in notes_of(nameless)["unknown-device"].message
    assert "--device" in notes_of(nameless)["unknown-device"].remedy


def test_a_device_that_was_recognized_without_a_name() -> None:
    def device(**facts: Any) -> Trace:
        return TraceBuilder().device("", **facts).kernel("volta_sgemm", 0, ms(1)).build()

    mi300 = device(multiprocessors=304, vendor="amd", compute_capability="9.4")
    note = notes_of(mi300)["identified-device"]
    assert "recognized as AMD MI300X or MI325X by: compute capability 9.4, 304 " in note.message
    assert "(MI300X, MI325X)" in note.message  # only their memory tells them apart
    assert "--device" in note.remedy
    whole = device(
        multiprocessors=304, memory_bytes=206141652992, vendor="amd", compute_capability="9.4"
    )
    note = notes_of(whole)["identified-device"]
    assert "recognized as AMD Instinct MI300X by:" in note.message
    assert note.remedy == ""
    # Kernels for Volta run on newer devices, too.
    assert "shows only kernels written for Volta" in notes_of(device())["unknown-device"].message


def test_a_device_that_the_user_names_needs_no_note() -> None:
    nameless = run_of(TraceBuilder().kernel("gemm", 0, ms(1)).build())
    signals = Signals(nameless, options=Options(device="MI300X"))
    ids = {note.id for note in profile_notes(signals)}
    assert not ids & {"unknown-device", "identified-device"}


def test_notes_of_the_reader_come_first() -> None:
    note = Note("truncated-file", "warning", "The file breaks off.")
    trace = TraceBuilder().kernel("gemm", 0, ms(1)).note(note).build()
    assert next(iter(notes_of(trace))) == "truncated-file"


def test_a_cpu_program_misses_no_device() -> None:
    trace = draw(
        """
        cell 1ms
        step |..|..|..|
        main |OO|OO|OO|
        """
    )
    assert not {"no-device-events", "unknown-device"} & set(notes_of(trace))


def launches(
    count: int, lost: int, *, captured: bool = False, steps: tuple[int, ...] = (1,)
) -> Trace:
    """Steps of ten launches each; in some, the last `lost` launches have no kernel."""
    builder = TraceBuilder().device("NVIDIA H100 80GB HBM3")
    for number in range(count):
        start = 20 * number
        builder.step(number, ms(start), ms(start + 20))
        begin = start + 10 - lost if number in steps else start + 10
        for at in range(start, start + 10):
            is_lost = at >= begin
            key = f"launch {at}"
            builder.launch(ms(at), ms(at) + 5_000, key=key)
            if not is_lost:
                builder.kernel("gemm", ms(at) + 9_000, ms(at + 1), launched_by=key)
        if captured and number == 1:
            builder.host(EventKind.RUNTIME, "cudaStreamBeginCapture", ms(begin) - 2, ms(begin) - 1)
            builder.host(
                EventKind.RUNTIME, "cudaStreamEndCapture", ms(start + 11), ms(start + 11) + 1
            )
    return builder.build()


def test_dropped_events() -> None:
    # 1 of the 50 launches of five steps: 2 %.
    assert "dropped-events" not in notes_of(launches(5, 1))
    # One of ten in each of three steps: 3 of 30 are 10 %.
    note = notes_of(launches(3, 1, steps=(0, 1, 2)))["dropped-events"]
    assert note.message.startswith("3 of 30 kernel launches")
    assert "10.0 %" in note.message


def test_launches_captured_into_a_graph_are_not_lost() -> None:
    assert "dropped-events" not in notes_of(launches(5, 10, captured=True))


def test_compiling_in_the_only_step() -> None:
    # 3 of 10 ms of the only step. If all of three steps compile, a rule reports it instead.
    only = "cell 1ms\nstep |..........|\nmain |ccc.oooooo|\ngpu 7 |....KKKKKK|"
    note = notes_of(draw(only))["compile-in-window"]
    assert "3.00 ms (30.0 %)" in note.message
    assert "schedule" in note.remedy
    step = "ccc.oooooo|"
    again = f"cell 1ms\nstep |{('.' * 10 + '|') * 3}\nmain |{step * 3}\ngpu 7 |{'....KKKKKK|' * 3}"
    assert "compile-in-window" not in notes_of(draw(again))


def test_importing_is_warm_up() -> None:
    name = "<frozen importlib._bootstrap>(1165): _find_and_load"
    trace = (
        TraceBuilder()
        .step(0, 0, ms(10))
        .host(EventKind.PYTHON, name, 0, ms(3))
        .host(EventKind.PYTHON, name, ms(1), ms(2))
        .launch(ms(3), ms(4))
        .kernel("gemm", ms(4), ms(10))
        .build()
    )
    assert "3.00 ms (30.0 %)" in notes_of(trace)["compile-in-window"].message


def test_options_that_were_off() -> None:
    def with_options(framework: Framework, *, value: bool | None) -> set[str]:
        builder = TraceBuilder(
            framework, has_shapes=value, has_stacks=value, has_memory=value
        ).device("NVIDIA H100 80GB HBM3")
        for number in range(3):
            builder.step(number, ms(2 * number), ms(2 * number + 2))
            builder.kernel("gemm", ms(2 * number), ms(2 * number + 1))
        return set(notes_of(builder.build()))

    off = {"missing-shapes", "missing-stacks", "missing-memory"}
    assert with_options("pytorch", value=False) == off
    assert with_options("tensorflow", value=False) == {"missing-stacks"}
    # No note if the file does not tell.
    assert with_options("pytorch", value=None) == set()
    assert with_options("pytorch", value=True) == set()


def test_operators_show_which_options_were_on_in_older_files() -> None:
    def noted(**columns: Any) -> set[str]:
        builder = TraceBuilder("pytorch").device("NVIDIA H100 80GB HBM3")
        for number in range(3):
            at = ms(2 * number)
            builder.step(number, at, at + ms(2))
            builder.operator("aten::mm", at, at + ms(1), **columns)
            builder.kernel("gemm", at, at + ms(1))
        return set(notes_of(builder.build()))

    assert noted() == {"missing-shapes", "missing-stacks", "missing-memory"}
    assert noted(shapes=[[8, 8], [8, 8]]) == {"missing-stacks", "missing-memory"}
    assert "missing-stacks" not in noted(frame="train.py(12): step")


def test_profiler_overhead() -> None:
    def recorded(operators: int) -> dict[str, Note]:
        builder = TraceBuilder(has_shapes=True).device("NVIDIA H100 80GB HBM3")
        for number in range(3):
            start = ms(number)
            builder.step(number, start, start + ms(1))
            builder.launch(start, start + 1).kernel("gemm", start, start + ms(1))
            for at in range(operators):
                builder.operator("aten::add", start + 10 * at, start + 10 * at + 9)
        return notes_of(builder.build())

    # An operator costs 600 ns and its shapes 400 ns: 60 operators in a millisecond are 6 %.
    note = recorded(60)["profiler-overhead"]
    assert "Recording with shapes takes an estimated 180 µs (6.0 %)" in note.message
    assert "profiler-overhead" not in recorded(40)


@pytest.mark.parametrize(("usual_ms", "is_said"), [(10, False), (7.7, False), (7.6, True)])
def test_steps_that_recording_made_longer(usual_ms: float, is_said: bool) -> None:
    builder = TraceBuilder(has_shapes=True)
    for number in range(3):
        builder.step(number, ms(10 * number), ms(10 * number + 10))
        for at in range(300):  # recording them is estimated to take 3 % of 10 ms
            start = ms(10 * number) + us(30 * at)
            builder.operator("aten::add", start, start + us(20))
    facts = Facts(recording=Recording("run", step_ns=1e6 * usual_ms))
    notes = notes_of(replace(builder.build(), facts=facts))
    # 10 / 7.7 is 1.299, and 10 / 7.6 is 1.316. What was measured replaces the estimate.
    assert ("slowed-by-recording" in notes) == is_said
    assert "profiler-overhead" not in notes
    # A recording that began because a step was slow may show a program that became slower.
    facts = Facts(recording=Recording("run", reason="slow step", step_ns=1e6 * usual_ms))
    slow = notes_of(replace(builder.build(), facts=facts))
    assert "slowed-by-recording" not in slow
    assert ("slower-than-usual" in slow) == is_said
    if is_said:
        for note, middle in (
            (notes["slowed-by-recording"], "median"),
            (slow["slower-than-usual"], "mean"),
        ):
            assert f"10.0 ms ({middle}) while they were recorded, 1.3 times" in note.message
            assert "as long as before (7.60 ms)" in note.message
            assert trust_in([note]).level == "limited"


def test_one_long_step_after_a_slow_one_makes_the_recording_unusual() -> None:
    builder = TraceBuilder()
    for number, (start, end) in enumerate(((0, 1), (1, 2), (2, 12))):
        builder.step(number, ms(start), ms(end)).operator("aten::add", ms(start), ms(end))
    for reason, name in (("slow step", "slower-than-usual"), ("periodic", "slowed-by-recording")):
        facts = Facts(recording=Recording("run", reason=reason, step_ns=1e6))
        notes = notes_of(replace(builder.build(), facts=facts))
        # 12 ms in three steps; the median is as usual, so that recording did not slow them.
        assert (name in notes) == (reason == "slow step")


def test_clock_skew() -> None:
    def rank(number: int, origin_ns: int) -> Trace:
        builder = TraceBuilder(rank=number, world_size=2, origin_unix_ns=origin_ns)
        builder.step(0, 0, ms(50))
        for sequence, start in enumerate((10, 30)):
            builder.launch(ms(start), ms(start) + 1, key=f"{sequence}")
            builder.collective(
                "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
                ms(start),
                ms(start + 5),
                sequence=sequence,
                group="0",
                launched_by=f"{sequence}",
            )
        return builder.build()

    def notes(apart_ns: int) -> dict[str, Note]:
        # Both ranks leave the collective at the same moment, so any difference is clock skew.
        origin = 1_700_000_000 * 10**9
        run = run_of(rank(0, origin), rank(1, origin + apart_ns))
        return {note.id: note for note in profile_notes(Signals(run))}

    message = notes(ms(3))["clock-skew"].message
    assert "up to 3.00 ms (rank 1 is ahead of rank 0)" in message
    assert "clock-skew" not in notes(ms(0.5))


def test_problems_with_the_files_of_other_ranks_are_noted_once_per_kind() -> None:
    def rank(number: int, *notes: Note) -> Trace:
        builder = TraceBuilder(rank=number, world_size=4, path=f"rank{number}.json")
        builder.step(0, 0, ms(10 - number)).operator("aten::mm", 0, ms(5))
        for note in notes:
            builder.note(note)
        return builder.build()

    cut = Note("truncated-file", "warning", "the file breaks off.")
    signals = reference_worker(
        run_of(rank(0), rank(1, cut), rank(2, cut, Note("x", "info", "?")), rank(3))
    )
    assert signals.worker == 0
    found = [note for note in profile_notes(signals) if note.id in ("truncated-file", "x")]
    assert [note.message for note in found] == ["rank1.json (and 1 more): the file breaks off."]
