from __future__ import annotations

import json
from typing import Any

import pytest

from tb_perfadvisor import analyze
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.note import Note
from tb_perfadvisor.report.formats.render import render
from tb_perfadvisor.report.formats.wording import together_text
from tb_perfadvisor.report.report import Report
from tb_perfadvisor.testing import TraceBuilder, draw, ms, run_of
from tb_perfadvisor.trace import Trace

# Two steps of 10 ms. The device waits 4 ms in each while the thread fetches.
SLOW = """
    cell 1ms
    step   |..........|..........|
    main   |DDDDoo....|DDDDoo....|
    gpu 7  |.....KKKKK|.....KKKKK|
"""
ON_THE_CPU = """
    cell 1ms
    step   |..........|..........|
    main   |OOOOOOOOOO|OOOOOOOOOO|
"""


def report_of(trace: Trace, config: Config | None = None) -> Report:
    return analyze(run_of(trace), config or Config())


def no_constant(name: str) -> Any:
    raise AssertionError(f"JSON holds {name}")


@pytest.mark.parametrize(
    ("origin_unix_ns", "is_known"), [(None, False), (1_700_000_000 * 10**9, True), (2**70, False)]
)
def test_report_says_when_it_was_recorded(origin_unix_ns: int | None, is_known: bool) -> None:
    builder = TraceBuilder(origin_unix_ns=origin_unix_ns)
    builder.step(0, 0, ms(10))
    builder.step(1, ms(10), ms(20))
    report = report_of(builder.build())
    json.loads(render(report, "json"))  # numbers of more than 64 bits cannot be written
    assert (report.recorded is not None) == is_known
    if report.recorded is not None:
        assert report.recorded.start_unix_ns == origin_unix_ns
        assert report.recorded.end_unix_ns - report.recorded.start_unix_ns == ms(20)


def test_savings_are_per_step_and_divided_once() -> None:
    report = report_of(draw(SLOW), Config(select=("input-stall",)))
    (finding,) = report.findings
    assert finding.saving is not None
    # 8 ms of the window of 20 ms wait, 4 ms of each of two steps: from 2 to 4 ms, so 3 ms.
    assert (finding.saving.expected_ns, finding.saving.marginal_ns) == (ms(3), ms(3))
    assert finding.saving.share_expected == pytest.approx(0.3)
    assert finding.severity == "high"
    assert (finding.scope.first_step, finding.scope.last_step) == (0, 1)
    assert report.combined_saving is not None
    assert report.combined_saving.expected_ns == ms(3)
    assert (report.overview.window_ns, report.overview.step_time_ns) == (ms(20), ms(10))
    assert report.headline == (
        "Waiting for input takes 40.0 % of each step. Feed the device without making it wait "
        "(DataLoader): probably −3.00 ms of 10.0 (2.00 to 4.00)"
    )


def test_a_finding_names_the_causes_of_the_time_it_claims() -> None:
    (finding,) = report_of(draw(SLOW), Config(select=("input-stall",))).findings
    # The device is idle for 5 ms: 4 ms while the thread fetches, 1 ms while an operator runs.
    assert finding.causes == ["input"]


def test_the_breakdown_sums_to_the_window() -> None:
    overview = report_of(draw(SLOW)).overview
    assert sum(part.total_ns for part in overview.breakdown) == overview.window_ns
    by_cause = {part.cause: part for part in overview.breakdown}
    assert by_cause["input"].total_ns == ms(8)
    assert by_cause["compute-32"].share == pytest.approx(0.5)
    assert all(part.total_ns > 0 for part in overview.breakdown)
    assert (overview.device_compute_share, overview.device_busy_share) == (0.5, 0.5)
    # The device starts 5 ms after the first step and works for 10 of the other 15 ms.
    assert overview.device_busy_share_of_span == pytest.approx(2 / 3)
    assert overview.precision == {"8": 0.0, "16": 0.0, "32": 1.0, "64": 0.0, "unknown": 0.0}


def test_device_numbers_are_null_on_the_cpu() -> None:
    overview = report_of(draw(ON_THE_CPU)).overview
    assert overview.device_compute_share is None
    assert overview.device_busy_share is None
    assert overview.device_busy_share_of_span is None
    assert overview.exposed_copy_share is None
    assert overview.operators.device_share_by_time is None
    assert overview.operators.device_share_by_count is None
    assert overview.precision is None
    assert overview.memory is None
    assert overview.kernels == []
    # Without fetches, the time waiting for input is unknown.
    assert overview.input_wait_share is None
    # A single process without collectives does not communicate.
    assert overview.exposed_communication_share == 0.0


def test_communication_is_unknown_if_several_ranks_have_no_collectives() -> None:
    overview = report_of(draw(SLOW, world_size=8)).overview
    assert overview.exposed_communication_share is None


@pytest.mark.parametrize(
    "trace",
    [
        TraceBuilder().build(),
        TraceBuilder().annotation("x", 0, 0).build(),
        TraceBuilder().device("H100").build(),
        TraceBuilder().kernel("k", 0, 0).build(),
        draw(ON_THE_CPU),
        draw(SLOW, step_line=False),
    ],
    ids=["empty", "an instant", "no device events", "no time", "cpu", "no steps"],
)
def test_no_number_is_nan_or_infinite(trace: Trace) -> None:
    report = report_of(trace, Config(with_views=True))
    decoded = json.loads(render(report, "json"), parse_constant=no_constant)
    assert len(decoded["reports"]) == 1


def test_views_are_included_on_request() -> None:
    assert report_of(draw(SLOW)).views is None
    views = report_of(draw(SLOW), Config(with_views=True)).views
    assert views is not None
    steps = views["steps"]
    assert (steps["index"], steps["duration_ns"]) == ([0, 1], [ms(10), ms(10)])
    assert steps["total_ns"][steps["causes"].index("input")] == [ms(4), ms(4)]
    assert [sum(column) for column in zip(*steps["total_ns"], strict=True)] == [ms(10)] * 2


def test_remedies_are_for_the_framework_of_the_trace() -> None:
    (finding,) = report_of(draw(SLOW), Config(select=("input-stall",))).findings
    assert {remedy.framework for remedy in finding.remedies} <= {"", "pytorch"}
    assert "DataLoader" in (finding.remedies[0].snippet or "")
    assert finding.when_to_ignore
    assert finding.how_to_verify


HEALTHY = """
    cell 1ms
    step   |.....|.....|
    gpu 7  |KKKKK|KKKKK|
"""


@pytest.mark.parametrize(
    ("trace", "headline"),
    [
        (TraceBuilder().build(), "The profile is empty: nothing was recorded"),
        (
            TraceBuilder().step(0, 0, ms(2)).launch(0, ms(1)).build(),
            "Do not act on this recording: it has no device events, so the device's time is "
            "unknown. Record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], and "
            "make sure that CUPTI is available (no other profiler attached; driver option "
            "NVreg_RestrictProfilingToAdminUsers=0)",
        ),
        (
            draw(ON_THE_CPU),
            "Nothing stands out: operators run for 100.0 % of each step, 100.0 % in "
            "aten::embedding_bag",
        ),
        (
            draw(HEALTHY),
            "Nothing stands out: the device computes for 100.0 % of each step, "
            "100.0 % in ampere_sgemm",
        ),
        (
            draw(HEALTHY, step_line=False),
            "Nothing stands out: the device computes for 100.0 % of the profile, "
            "100.0 % in ampere_sgemm",
        ),
    ],
    ids=["empty", "device missing", "cpu", "gpu", "no steps"],
)
def test_headlines_without_savings(trace: Trace, headline: str) -> None:
    assert report_of(trace, Config(select=("input-stall",))).headline == headline


def test_several_changes_are_counted() -> None:
    # 4 of 10 ms fetching, then 3 ms between the optimizer's end and the next step.
    trace = draw(
        """
        cell 1ms
        step   |..........|..........|
        main   |DDDDoz.ppp|DDDDoz.ppp|
        gpu 7  |....KK....|....KK....|
        """
    )
    report = report_of(trace, Config(select=("input-stall", "step-gap")))
    assert [finding.rule_id for finding in report.findings] == ["input-stall", "step-gap"]
    assert report.headline.startswith("Waiting for input takes 40.0 % of each step. ")
    assert together_text(report).startswith("2 changes together save 7.00 ms per step (70.0 %)")


def test_the_report_has_all_workers_and_notes() -> None:
    first = draw(SLOW, rank=0, world_size=2, host="a", path="a.json")
    second = draw(SLOW, rank=1, world_size=2, host="b", path="b.json")
    report = analyze(run_of(second, first), Config())
    assert [(worker.rank, worker.host, worker.file) for worker in report.workers] == [
        (0, "a", "a.json"),
        (1, "b", "b.json"),
    ]
    note = Note("truncated-file", "warning", "The file breaks off.", "Record again.")
    noted = report_of(TraceBuilder().kernel("k", 0, ms(1)).note(note).build())
    assert noted.notes[0].id == "truncated-file"


def test_every_rule_that_ran_has_an_outcome() -> None:
    report = report_of(draw(SLOW), Config(select=("input-stall", "padded-shapes", "step-gap")))
    status = {outcome.rule_id: outcome.status for outcome in report.outcomes}
    assert status["input-stall"] == "found"
    assert status["padded-shapes"] == "not_applicable"
    assert set(status) == {"input-stall", "padded-shapes", "step-gap"}
    (padded,) = [outcome for outcome in report.outcomes if outcome.rule_id == "padded-shapes"]
    assert "tiled-layouts" in padded.missing


def test_progress_goes_from_zero_to_nearly_one() -> None:
    seen: list[float] = []
    analyze(run_of(draw(SLOW)), Config(), lambda stage, share: seen.append(share))
    assert seen == sorted(seen)
    assert seen[0] == 0.0
    assert seen[-1] <= 1.0
