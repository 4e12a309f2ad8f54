from __future__ import annotations

import pytest

from tb_perfadvisor.engine.analyze import analyze_run
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.engine.profile_notes import profile_notes
from tb_perfadvisor.note import Note
from tb_perfadvisor.report.build import build_report
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.testing import TraceBuilder, ms, run_of, us
from tb_perfadvisor.testing.builder import Builder
from tb_perfadvisor.trace import EventKind, Trace


def notes_of(trace: Trace) -> dict[str, Note]:
    return {note.id: note for note in profile_notes(Signals(run_of(trace)))}


def caption_of(trace: Trace) -> str:
    return build_report(analyze_run(run_of(trace), Config()), Config()).caption


def steps(count: int) -> Builder:
    """Steps of 10 ms with a launch and a kernel of 8 ms each."""
    builder = TraceBuilder().device("NVIDIA H100 80GB HBM3")
    for number in range(count):
        begin = ms(10 * number)
        builder.step(number, begin, begin + ms(10))
        builder.launch(begin, begin + us(5), key=f"{number}")
        builder.kernel("gemm", begin + us(10), begin + ms(8), launched_by=f"{number}")
    return builder


def late_start(*, marked: bool) -> Trace:
    """The first kernel starts 5 ms after its launch at 0, which returns after 5 us."""
    builder = TraceBuilder()
    for number in range(4):
        begin = ms(10 * number)
        if marked:
            builder.step(number, begin, begin + ms(10))
        builder.launch(begin, begin + us(5), key=f"{number}")
        start = begin + (ms(5) if number == 0 else us(10))
        builder.kernel("gemm", start, begin + ms(9), launched_by=f"{number}")
    return builder.build()


def test_a_recording_that_began_mid_work() -> None:
    note = notes_of(late_start(marked=False))["recording-began-mid-work"]
    assert note.severity == "warning"
    # 5 ms from the beginning of the profile, 4.995 from the launch's return.
    assert "the first event of stream 7 starts 5.00 ms after its launch returned" in note.message
    assert note.message.endswith("so the first 5.00 ms of the profile are not analyzed.")
    assert "torch.cuda.synchronize()" in note.remedy


def test_steps_left_out_because_the_recording_began_mid_work() -> None:
    note = notes_of(late_start(marked=True))["recording-began-mid-work"]
    assert note.message.endswith("are not analyzed (step 0).")


def test_steps_that_begin_later_need_no_note() -> None:
    builder = TraceBuilder().launch(0, us(5), key="early")
    builder.kernel("gemm", ms(5), ms(9), launched_by="early")
    for number in range(3):
        builder.step(number, ms(10 * number + 10), ms(10 * number + 20))
        builder.launch(ms(10 * number + 10), ms(10 * number + 10) + us(5), key=f"{number}")
        builder.kernel("gemm", ms(10 * number + 11), ms(10 * number + 19), launched_by=f"{number}")
    assert "recording-began-mid-work" not in notes_of(builder.build())


def test_partial_steps_are_why_no_step_is_analyzed() -> None:
    builder = TraceBuilder().step(7, 0, ms(10)).launch(0, us(5), key="launch")
    builder.kernel("gemm", ms(4), ms(9), launched_by="launch")
    notes = notes_of(builder.build())
    assert notes["no-steps"].message.startswith("All steps of the profile are partial")
    assert "(step 7)" in notes["recording-began-mid-work"].message


def lost_at_the_end(lost: int, *, among: int = 40, also: int = -1) -> dict[str, Note]:
    """One step with `among` launches that the host makes at once; the last ones have no kernel."""
    builder = TraceBuilder().step(0, 0, ms(100))
    for number in range(among):
        builder.launch(us(10 * number), us(10 * number + 5), key=f"{number}")
        if number != also and number < among - lost:
            builder.kernel("gemm", ms(2 * number + 1), ms(2 * number + 3), launched_by=f"{number}")
    return notes_of(builder.build())


def test_a_profile_that_was_stopped_before_the_device_was_done() -> None:
    # 10 of 40 launches are 25 %.
    notes = lost_at_the_end(10)
    assert "dropped-events" not in notes
    note = notes["recording-ended-early"]
    assert note.message.startswith("The last 10 of 40 kernel launches (25.0 %) have no kernel")
    assert "torch.cuda.synchronize()" in note.remedy


def test_launches_lost_elsewhere_were_dropped() -> None:
    # One of eleven lost launches is the sixth: 91 % are at the end, less than 95.
    notes = lost_at_the_end(10, also=5)
    assert "recording-ended-early" not in notes
    assert notes["dropped-events"].message.startswith("11 of 40 kernel launches")


def test_a_sample_of_the_events_is_told_from_a_recording() -> None:
    builder = TraceBuilder().step(0, 0, ms(100)).launch(0, us(5), key="a")
    builder.kernel("gemm", ms(1), ms(3), launched_by="a")
    whole = builder.source(recorded_calls_share=0.05).build()
    assert "sampled-events" not in notes_of(whole)
    sampled = builder.source(recorded_calls_share=0.005).build()
    message = notes_of(sampled)["sampled-events"].message
    assert message.startswith("By the numbers of the runtime's calls, the file has one in 200")


def test_few_launches_without_kernels_are_no_problem() -> None:
    # 2 of 40 are 5 %.
    assert not {"recording-ended-early", "dropped-events"} & set(lost_at_the_end(2))


def test_first_calls() -> None:
    # At the end of the last of three steps: the device idles from 28 ms until the launch returns.
    builder = steps(3)
    builder.launch(ms(28), ms(30) - us(10), key="slow")
    builder.kernel("softmax", ms(30) - us(10), ms(30), launched_by="slow")
    note = notes_of(builder.build())["first-call"]
    assert "1.99 ms (6.6 %) of the analyzed time" in note.message
    assert "first launches of kernels" in note.message
    assert "first-call" not in notes_of(steps(3).build())


def test_graph_capture() -> None:
    builder = steps(3)
    builder.host(EventKind.RUNTIME, "cudaStreamBeginCapture", ms(18), ms(18) + 10)
    builder.host(EventKind.RUNTIME, "cudaStreamEndCapture", ms(19), ms(19) + 10)
    note = notes_of(builder.build())["graph-capture"]
    # From the beginning of the first call to the end of the second.
    assert note.message.startswith("In 1.00 ms (3.3 %) of the analyzed time, a graph is captured")


def nccl_only() -> Trace:
    """What remains of a program on GPUs if none of its CUDA events are recorded."""
    builder = TraceBuilder().step(0, 0, ms(10)).operator("aten::mm", 0, ms(5), launches=False)
    return builder.annotation("nccl:all_to_all", ms(5), ms(6)).build()


@pytest.mark.parametrize(
    "trace",
    [
        nccl_only(),
        TraceBuilder().step(0, 0, ms(2)).launch(0, ms(1)).build(),
        TraceBuilder(backend="nccl").step(0, 0, ms(2)).annotation("a", 0, ms(1)).build(),
    ],
    ids=["nccl", "launches", "backend"],
)
def test_device_events_are_missing(trace: Trace) -> None:
    notes = notes_of(trace)
    assert notes["device-events-missing"].severity == "error"
    assert "CUPTI" in notes["device-events-missing"].remedy
    assert "no-device-events" not in notes
    report = build_report(analyze_run(run_of(trace), Config()), Config())
    assert "CPU" not in report.caption
    assert "no events of the device" in report.caption
    assert report.workers[0].device is not None
    assert report.workers[0].device.used is None
    assert report.overview.device_busy_share is None
    assert report.trust.level == "do not act"
    assert report.headline.startswith(
        "Do not act on this recording: it has no device events, so the device's time is unknown. "
        "Record with"
    )


def test_the_device_whose_events_are_missing_is_named() -> None:
    builder = TraceBuilder().device("NVIDIA A100 80GB PCIe", memory_bytes=80 * 2**30)
    trace = builder.launch(0, ms(1)).build()
    assert "no events of the NVIDIA A100 80GB PCIe" in caption_of(trace)


def test_gloo_is_no_sign_of_a_device() -> None:
    builder = TraceBuilder().step(0, 0, ms(10)).operator("aten::mm", 0, ms(5), launches=False)
    trace = builder.annotation("gloo:all_reduce", ms(5), ms(6)).build()
    assert not {"device-events-missing", "no-device-events"} & set(notes_of(trace))
    assert "CPU" in caption_of(trace)


def fetched(name: str, share: int) -> Trace:
    """Ten steps of 10 ms that fetch for a number of milliseconds each."""
    kind = EventKind.INPUT_WORK if name.startswith("Iterator") else EventKind.INPUT_WAIT
    builder = TraceBuilder("jax" if kind == EventKind.INPUT_WAIT else "tensorflow")
    for number in range(10):
        begin = ms(10 * number)
        builder.step(number, begin, begin + ms(10))
        builder.host(EventKind.INPUT_WAIT, name.partition("::")[0], begin, begin + ms(share))
        builder.host(kind, name, begin, begin + ms(share))
        builder.operator("dot", begin + ms(share), begin + ms(10), launches=False)
    return builder.build()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("PrefetchDatasetIterator.__next__", "grain.config.update('py_debug_mode', True)"),
        ("Iterator::Root::Prefetch::DataServiceV2", "tf.profiler.experimental.server.start(PORT)"),
    ],
)
def test_input_that_other_processes_prepare(name: str, words: str) -> None:
    note = notes_of(fetched(name, 1))["unseen-input"]
    assert note.message.startswith("The steps wait 10.0 % of their time for input.")
    assert words in note.remedy
    # Without a wait, nothing needs to be seen.
    assert "unseen-input" not in notes_of(fetched(name, 0))


def test_input_of_this_process_needs_no_such_note() -> None:
    assert "unseen-input" not in notes_of(fetched("Iterator::Root::Prefetch::Map", 4))
    builder = TraceBuilder("jax")
    for number in range(10):
        begin = ms(10 * number)
        builder.step(number, begin, begin + ms(10))
        fetch = "PrefetchDatasetIterator.__next__"
        builder.host(EventKind.INPUT_WAIT, fetch, begin, begin + ms(4))
        # Grain's own threads.
        work = "RandomMapMapDataset.__getitem__"
        builder.host(EventKind.INPUT_WORK, work, begin, begin + ms(3), thread="grain")
    assert "unseen-input" not in notes_of(builder.build())
