"""Which of a host's files is used if several contain the same facts or contradict each other."""

from __future__ import annotations

import pytest

from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.ingest.tf_tools import ToolFile, tool_file
from tb_perfadvisor.note import Note
from tb_perfadvisor.signals import Cause, Signals
from tb_perfadvisor.signals.recording.availability import shows_communication
from tb_perfadvisor.testing import run_of
from tb_perfadvisor.trace import Trace
from tests.support.tool_results import (
    chart_table,
    document,
    generic_step,
    input_pipeline,
    overview,
    read,
    tpu_step,
)

TEN = input_pipeline(generic_step(0, step=10.0, compute=10.0))


def table(step_ms: float, **properties: str) -> bytes:
    columns = {"stepnum": ["0"], "computeTimeMs": [step_ms], "inputTimeMs": [0.0]}
    return document([chart_table(columns, properties)])


def disagreements(trace: Trace) -> list[Note]:
    return [note for note in trace.notes if note.id == "results-disagree"]


def step_ms(trace: Trace) -> list[float]:
    return [ns / 1e6 for ns in Signals(run_of(trace)).steps.duration_ns.tolist()]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("localhost.overview_page.pb", ToolFile("localhost", "overview_page", "pb")),
        ("a/10.240.1.50.pod_viewer.json", ToolFile("10.240.1.50", "pod_viewer", "json")),
        ("h.memory_profile.json.gz", ToolFile("h", "memory_profile", "json")),
        ("input_pipeline.json", ToolFile("", "input_pipeline", "json")),
        ("h.tf_data_stats.pb", None),
        ("h.overview_page.txt", None),
        ("myoverview_page.pb", None),
    ],
)
def test_names(name: str, expected: ToolFile | None) -> None:
    assert tool_file(name) == expected


def test_the_trace_is_named_after_the_file_with_the_steps() -> None:
    trace = read({"h.overview_page.pb": overview(TEN), "h.input_pipeline.pb": TEN})
    assert (trace.source.path, trace.source.host) == ("h.input_pipeline.pb", "h")
    assert disagreements(trace) == []


def test_overview_alone_has_steps() -> None:
    trace = read({"h.overview_page.pb": overview(TEN, device="GPU", cores=2)})
    assert step_ms(trace) == [10.0]
    assert len(trace.devices) == 2


def test_a_file_of_another_recording_is_left_out() -> None:
    other = input_pipeline(generic_step(0, step=20.0, compute=20.0))
    page = overview(other, percent={10: 100.0}, device="TPU v3", cores=4)
    trace = read({"h.overview_page.pb": page, "h.input_pipeline.pb": TEN})
    assert step_ms(trace) == [10.0]
    assert [device.name for device in trace.devices] == ["GPU"]
    assert trace.totals is not None
    assert trace.totals.precision is None
    (note,) = disagreements(trace)
    assert "Steps are from h.input_pipeline.pb (10.0 ms per step)" in note.message
    assert "ignored: h.overview_page.pb (20.0 ms per step)" in note.message


def test_a_note_names_the_file_without_its_folder() -> None:
    # The parts take 12 ms of a step of 10.
    longer = input_pipeline(generic_step(0, step=10.0, compute=8.0, wait_input=4.0))
    (note,) = disagreements(read({"plugins/profile/run/h.input_pipeline.pb": longer}))
    assert note.message.startswith("h.input_pipeline.pb is inconsistent: in 1 of 1 steps")


def test_protobuf_counts_before_tables() -> None:
    files = {"h.input_pipeline.json": table(30.0), "h.overview_page.pb": overview(TEN)}
    trace = read(files)
    assert step_ms(trace) == [10.0]
    assert "ignored: h.input_pipeline.json (30.0 ms per step)" in disagreements(trace)[0].message


@pytest.mark.parametrize(("stated", "count"), [("10.0", 0), ("9.95", 0), ("9.8", 1)])
def test_note_on_inconsistent_files(stated: str, count: int) -> None:
    trace = read({"h.overview_page.json": table(10.0, steptime_ms_average=stated)})
    assert step_ms(trace) == [10.0]
    assert len(disagreements(trace)) == count


def test_note_on_an_inconsistent_protobuf() -> None:
    results = input_pipeline(generic_step(0, step=10.0, compute=10.0), mean=14.0)
    (note,) = disagreements(read({"h.input_pipeline.pb": results}))
    assert "its steps take 10.0 ms on average, but it states 14.0 ms" in note.message


def test_parts_longer_than_their_step_are_cut() -> None:
    results = input_pipeline(
        generic_step(0, step=10.0, wait_input=4.0, compute=9.0, output=2.0),
        generic_step(1, step=5.0, compute=5.0),
    )
    trace = read({"h.input_pipeline.pb": results})
    totals = Signals(run_of(trace)).attribution.step_total_ns
    assert totals[Cause.INPUT].tolist() == [4_000_000, 0]
    assert totals[Cause.COMPUTE_UNKNOWN].tolist() == [6_000_000, 5_000_000]
    assert totals[Cause.COPIES].tolist() == [0, 0]
    (note,) = disagreements(trace)
    assert "in 1 of 2 steps the parts take longer" in note.message


def pod(number: int, total_us: float, all_reduce_us: float) -> bytes:
    core = {"totalDurationUs": total_us, "allReduceComputeDurationUs": all_reduce_us}
    steps = [{"stepNum": number, "podStatsPerCore": {"1": core}}]
    return document({"podStatsSequence": {"podStatsMap": steps}})


def communication(trace: Trace) -> tuple[list[float], bool]:
    signals = Signals(run_of(trace))
    total = signals.attribution.step_total_ns[Cause.COMMUNICATION]
    return [ns / 1e6 for ns in total.tolist()], shows_communication(signals)


def test_pod_viewer_separates_communication_from_compute() -> None:
    files = {"h.input_pipeline.json": table(10.0), "h.pod_viewer.json": pod(0, 10_000, 1_500)}
    trace = read(files)
    assert communication(trace) == ([1.5], True)
    assert step_ms(trace) == [10.0]
    compute = Signals(run_of(trace)).attribution.step_total_ns[Cause.COMPUTE_UNKNOWN]
    assert compute.tolist() == [8_500_000]


@pytest.mark.parametrize(
    "viewer",
    [pod(1, 10_000, 1_500), pod(0, 10_000, 10_050)],
    ids=["of another step", "of more than the compute"],
)
def test_communication_is_unknown_if_the_pod_viewer_does_not_match(viewer: bytes) -> None:
    trace = read({"h.input_pipeline.json": table(10.0), "h.pod_viewer.json": viewer})
    assert communication(trace) == ([0.0], False)


def test_a_pod_viewer_of_another_recording_is_left_out() -> None:
    files = {"h.input_pipeline.json": table(10.0), "h.pod_viewer.json": pod(0, 99_000, 1_500)}
    trace = read(files)
    assert communication(trace) == ([0.0], False)
    assert "ignored: h.pod_viewer.json (99.0 ms per step)" in disagreements(trace)[0].message


def test_note_on_a_damaged_file_among_good_ones() -> None:
    trace = read({"h.overview_page.pb": b"\xff" * 40, "h.input_pipeline.pb": TEN})
    (note,) = (note for note in trace.notes if note.id == "unsupported-file")
    assert note.message == (
        "h.overview_page.pb was left out: this is not a result of the overview_page tool, or "
        "it is damaged."
    )


def test_impossible_steps_are_dropped() -> None:
    results = input_pipeline(
        generic_step(0, step=10.0, compute=10.0),
        generic_step(1, step=-1.0),
        generic_step(2, step=float("nan"), compute=1.0),
        generic_step(3, step=1e300, compute=1.0),
        generic_step(4, compute=2.2250738585072014e-308),
        generic_step(5, step=0.0),
    )
    assert step_ms(read({"h.input_pipeline.pb": results})) == [10.0]


def test_files_without_steps_are_rejected() -> None:
    with pytest.raises(UnreadableProfileError) as error:
        read({"h.input_pipeline.pb": input_pipeline(hardware="CPU_ONLY")})
    assert str(error.value) == (
        "h.input_pipeline.pb: these results contain no step times. No complete step "
        "was recorded: record again, for several steps."
    )


def test_steps_without_numbers_are_counted() -> None:
    columns = {"stepnum": ["a", "b"], "computeTimeMs": [1.0, 2.0], "inputTimeMs": [0.0, 0.0]}
    trace = read({"h.input_pipeline.json": document([chart_table(columns)])})
    assert Signals(run_of(trace)).steps.number.tolist() == [0, 1]


def test_type_of_a_tpu_comes_from_the_most_specific_file() -> None:
    results = input_pipeline(tpu_step(0, compute=3.0), hardware="TPU")
    files = {
        "h.input_pipeline.pb": results,
        "h.overview_page.pb": overview(results, device="TPU v3", cores=2),
    }
    assert [device.name for device in read(files).devices] == ["TPU v3", "TPU v3"]
