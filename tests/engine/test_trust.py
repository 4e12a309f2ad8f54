"""How far a report can be trusted, and what follows from that."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tb_perfadvisor.contract import model
from tb_perfadvisor.engine.analyze import analyze_run
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.engine.trust import LEAST_WORK, trust_in
from tb_perfadvisor.machine.facts import Facts, Load
from tb_perfadvisor.note import Note
from tb_perfadvisor.report.build import build_report
from tb_perfadvisor.soundness import examined
from tb_perfadvisor.testing import TraceBuilder, draw, ms, run_of, us
from tb_perfadvisor.trace import CopyDirection, EventKind, Trace
from tests.support.device_loops import BUSY_SHARE, KERNELS, loop


def report_of(trace: Trace) -> model.Report:
    return build_report(analyze_run(run_of(examined(trace)), Config()), Config())


def test_a_sound_recording_is_solid() -> None:
    report = report_of(loop().build())
    assert report.trust == model.TrustInfo(level="solid", reasons=[])
    # Eight kernels of 1 ms and a copy of 10 us in 10 ms.
    assert report.overview.device_busy_share == pytest.approx(BUSY_SHARE + 0.001)


def test_the_gravest_reason_comes_first() -> None:
    notes = [
        Note("missing-stacks", "info", "No stacks."),
        Note("truncated-file", "warning", "The file is cut off.", "Copy it again."),
        Note("start-up", "error", "It starts up.", "Record later."),
    ]
    trust = trust_in(notes)
    assert trust.level == "do not act"
    assert [reason.id for reason in trust.reasons] == ["start-up", "truncated-file"]
    assert trust_in(notes[:2]).level == "limited"
    assert trust_in(notes[:1]).level == "solid"
    # What was repaired, and changes no figure, is only a note.
    assert trust_in([Note("device-clock-shift", "info", "By 12 us.")]).level == "solid"


def lost_in(*steps: int) -> frozenset[tuple[int, int]]:
    return frozenset((step, k) for step in steps for k in range(KERNELS))


def test_steps_without_their_events_are_left_out_and_named() -> None:
    # Steps 3 and 4 of eight. The steps after them are as many as those before: the later count.
    report = report_of(loop(8, lost=lost_in(3, 4)).build())
    assert report.overview.device_busy_share == pytest.approx(BUSY_SHARE + 0.001, rel=0.05)
    assert report.steps.used == 3
    assert {step.index: step.reason for step in report.steps.excluded} == {
        **dict.fromkeys(
            (0, 1, 2), "partial: the device events of steps beside it were not recorded"
        ),
        **dict.fromkeys((3, 4), "partial: its device events were not recorded"),
    }
    (reason,) = report.trust.reasons
    assert (report.trust.level, reason.id) == ("limited", "lost-steps")
    assert reason.message.startswith("2 of 8 steps (3, 4) lack device events")
    assert "They, and 3 beside them, are left out" in reason.message
    assert report.trust.reasons[0].in_short == "some steps lack their device events"


def test_the_last_step_often_lacks_its_events() -> None:
    report = report_of(loop(8, lost=lost_in(7)).build())
    assert [step.index for step in report.steps.excluded] == [7]
    assert report.trust.level == "solid"


def test_if_most_steps_lack_their_events_there_is_nothing_to_act_on() -> None:
    report = report_of(loop(8, lost=lost_in(2, 3, 4, 5, 6, 7)).build())
    assert report.trust.level == "do not act"
    assert report.trust.reasons[0].message.startswith("6 of 8 steps (2 to 7)")
    assert report.first is None


def decode(wait_ms: float) -> Trace:
    """Ten steps of 30 ms: 10 ms of kernels, a graph without kernels, a wait until `wait_ms`."""
    builder = TraceBuilder().device("AMD Instinct MI300X")
    for step in range(10):
        at = ms(30 * step)
        builder.step(step, at, at + ms(30))
        for k in range(5):
            key = f"{step}.{k}"
            builder.launch(at + us(20 * k), at + us(20 * k + 5), name="hipLaunchKernel", key=key)
            builder.kernel("gemm", at + ms(2 * k + 0.2), at + ms(2 * k + 2.2), launched_by=key)
        builder.launch(at + us(300), at + us(350), name="hipGraphLaunch")
        builder.synchronize(at + us(400), at + ms(wait_ms), name="hipStreamSynchronize")
    return builder.build()


@pytest.mark.parametrize(
    # The kernels end at 10.2 ms. Waiting until 11.7 ms is 5.0 % of 30 ms, until 25.2 ms 50 %.
    ("wait_ms", "level", "knows_busy"),
    [(11.6, "solid", True), (11.8, "limited", False), (25.3, "do not act", False)],
)
def test_time_that_was_not_recorded(wait_ms: float, level: str, knows_busy: bool) -> None:
    report = report_of(decode(wait_ms))
    assert report.trust.level == level
    overview = report.overview
    shares = (overview.device_busy_share, overview.device_compute_share)
    assert [share is not None for share in shares] == [knows_busy, knows_busy]
    parts = {part.cause: part.total_ns for part in overview.breakdown}
    assert parts["not-recorded"] == 10 * ms(wait_ms - 10.2)
    assert sum(parts.values()) == overview.window_ns
    if not knows_busy:
        assert overview.mfu is None
        # Whether the device idled is unknown, so nothing is said about idle time.
        assert not {"device-synchronization", "launch-bound"} & {
            finding.rule_id for finding in report.findings
        }
    if level == "do not act":
        assert report.first is None
        assert report.headline.startswith(
            "Do not act on this recording: most of the device's work was not recorded. Record "
            "without GPU graphs"
        )


@pytest.mark.parametrize(
    ("kernels", "steps", "is_ranked"),
    [(LEAST_WORK - 1, 0, False), (LEAST_WORK, 0, True), (3, 3, True)],
)
def test_too_little_work_gets_no_ranking(kernels: int, steps: int, is_ranked: bool) -> None:
    builder = TraceBuilder()
    for step in range(steps):
        builder.step(step, ms(10 * step), ms(10 * step + 10))
    for k in range(kernels):
        builder.launch(ms(10 * k), ms(10 * k) + us(5), key=f"{k}")
        builder.kernel("gemm", ms(10 * k) + us(10), ms(10 * k + 2), launched_by=f"{k}")
    report = report_of(builder.build())
    assert ("too-little-data" not in {note.id for note in report.notes}) is is_ranked
    if not is_ranked:
        assert (report.findings, report.first) == ([], None)
        assert "The recording holds 19 kernels: too few" in report.trust.reasons[0].message
        # Where the time goes is known all the same.
        assert report.overview.device_busy_share == pytest.approx(19 * 1.99 / (18 * 10 + 1.99))


@pytest.mark.parametrize(
    ("kernel_ms", "pause_ms", "is_ranked"), [(1100, 0, True), (900, 0, False), (1100, 1200, False)]
)
def test_one_long_kernel_is_a_program(kernel_ms: int, pause_ms: int, is_ranked: bool) -> None:
    # A ray tracer: the scene is built, and one kernel renders the image.
    builder = TraceBuilder()
    builder.kernel("create_world", 0, ms(10))
    builder.kernel("render", ms(10 + pause_ms), ms(10 + pause_ms + kernel_ms))
    report = report_of(builder.build())
    assert ("too-little-data" not in {note.id for note in report.notes}) is is_ranked
    assert (report.trust.level != "do not act") is is_ranked


def test_copies_without_a_kernel_get_no_ranking() -> None:
    # The program had not begun when the recording ended.
    builder = TraceBuilder()
    builder.copy(CopyDirection.HOST_TO_DEVICE, 0, us(2))
    report = report_of(builder.build())
    assert (report.findings, report.first) == ([], None)
    assert report.trust.reasons[0].message.startswith(
        "The recording holds 1 copy or fill, and no kernel: too few"
    )


def test_operators_count_where_no_device_works() -> None:
    builder = TraceBuilder()
    for k in range(LEAST_WORK - 1):
        builder.operator("aten::mm", ms(k), ms(k + 1), launches=False)
    assert (
        report_of(builder.build())
        .trust.reasons[0]
        .message.startswith("The recording holds 19 operators")
    )


@pytest.mark.parametrize(("others", "is_found"), [(0.0, True), (0.65, True), (0.75, False)])
def test_idle_time_that_others_took_is_not_the_programs(*, others: float, is_found: bool) -> None:
    # After the optimizer, no operator runs for 7 of 10 ms.
    trace = draw(
        """
        cell 1ms
        step   |..........|..........|..........|..........|
        main   |oBz.......|oBz.......|oBz.......|oBz.......|
        """
    )
    report = report_of(replace(trace, facts=Facts(load=Load(others, 0.0))))
    assert ("step-gap" in [finding.rule_id for finding in report.findings]) is is_found


def test_a_drawing_is_taken_for_sound() -> None:
    # It was not examined, so its work was not counted.
    trace = TraceBuilder().kernel("gemm", 0, ms(1)).build()
    assert analyze_run(run_of(trace), Config()).trust.level == "solid"


def test_a_piece_of_a_step_leads() -> None:
    # The names of its operators are those of a model that is trained, and it runs no product.
    builder = TraceBuilder("tensorflow")
    builder.step(1, 0, ms(10))
    name = "gradient_tape/model/dense/Relu/ReluGrad"
    for k in range(LEAST_WORK):
        at = us(100 * k)
        builder.host(EventKind.OPERATOR, name, at, at + us(90))
        builder.launch(at + us(10), at + us(20), key=f"{k}")
        builder.kernel("Relu", at + us(30), at + us(80), launched_by=f"{k}")
    report = report_of(builder.build())
    assert report.headline.startswith(
        "Do not act on this recording: it holds only a piece of a step. Record several whole steps"
    )
