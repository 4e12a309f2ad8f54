from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tb_perfadvisor import analyze
from tb_perfadvisor.machine.facts import Facts, Line, Lines
from tb_perfadvisor.rules.steps.variation import StepOutliers
from tb_perfadvisor.testing import TraceBuilder, check_rule, find, host, ms, run_of
from tb_perfadvisor.trace import Trace

SLOW = """
    cell 1ms
    step   |...|...|...........|...|...|...|
    main   |oo.|oo.|ouuuuuuuuo.|oo.|oo.|oo.|
    gpu 7  |KKK|KKK|K........KK|KKK|KKK|KKK|
"""
FIXED = """
    cell 1ms
    step   |...|...|...|...|...|...|
    main   |oo.|oo.|oo.|oo.|oo.|oo.|
    gpu 7  |KKK|KKK|KKK|KKK|KKK|KKK|
"""


def test_saves_what_the_fix_saves() -> None:
    # 8 ms in one of six steps.
    checked = check_rule(StepOutliers, slow=SLOW, fixed=FIXED, saves=8_000_000 // 6)
    (finding,) = checked.findings
    assert "step 2 takes 11.0 ms, the median is 3.00 ms" in finding.summary
    assert finding.summary.endswith("unexplained, in ## RecMetricModule:update ##.")
    assert finding.saving is not None
    assert finding.saving.basis == "heuristic"  # a single outlier
    assert finding.saving.low_ns == 0


def test_a_step_that_computes_more_has_no_saving() -> None:
    trace = """
        cell 1ms
        step   |...|...|...........|...|...|...|
        main   |oo.|oo.|oo.........|oo.|oo.|oo.|
        gpu 7  |KKK|KKK|KKKKKKKKKKK|KKK|KKK|KKK|
    """
    (finding,) = find(StepOutliers, trace) or ()
    assert finding.saving is None
    assert finding.severity == "low"
    assert "Most of the additional time is compute" in finding.summary


def test_a_long_gap_between_steps_is_reported_once() -> None:
    # Eight steps of 10 ms; after the fourth, an evaluation takes 30 ms.
    builder, at = TraceBuilder(), 0
    for number in range(8):
        length = 40 if number == 3 else 10
        builder.step(number, ms(at), ms(at + length))
        builder.launch(ms(at), ms(at + 1), key=f"{number}")
        builder.kernel("gemm", ms(at + 1), ms(at + 8), launched_by=f"{number}")
        builder.annotation("Optimizer.step#SGD.step", ms(at + 7), ms(at + 9))
        if number == 3:
            builder.annotation("evaluate", ms(at + 10), ms(at + 39))
        at += length
    ids = [finding.rule_id for finding in analyze(run_of(builder.build())).findings]
    assert "step-gap" in ids
    assert "step-outliers" not in ids


def test_a_slow_first_step_is_warm_up() -> None:
    trace = """
        cell 1ms
        step   |...........|...|...|...|...|...|
        main   |ouuuuuuuuo.|oo.|oo.|oo.|oo.|oo.|
        gpu 7  |K........KK|KKK|KKK|KKK|KKK|KKK|
    """
    assert find(StepOutliers, trace) == ()


def test_steps_that_vary_have_no_outliers() -> None:
    # Median 5, deviations 2, 1, 0, 0, 2, 3 -> MAD 1.5, sigma 2.2: 9 ms is within 3.5 of them.
    trace = """
        cell 1ms
        step   |...|....|.....|.....|.......|.........|
        main   |o..|ou..|ouu..|ouu..|ouuuu..|ouuuuuu..|
        gpu 7  |K.K|K..K|K...K|K...K|K.....K|K.......K|
    """
    assert find(StepOutliers, trace) == ()


def test_just_below_and_just_above_the_limit() -> None:
    assert find(StepOutliers, SLOW, settings={"greatest_share": 0.16}) == ()
    assert len(find(StepOutliers, SLOW, settings={"greatest_share": 0.17}) or ()) == 1


def test_recorded_outliers(corpus: Path) -> None:
    # Two of 39 steps take more than twice the median.
    report = analyze(corpus / "param" / "linear")
    (finding,) = [item for item in report.findings if item.rule_id == "step-outliers"]
    assert finding.summary.startswith("2 of 39 steps are much slower than the others")


def test_steps_of_a_server_that_read_prompts_are_no_outliers() -> None:
    legend = {
        "d": host("execute_context_0(0)_generation_4(4)"),
        "P": host("execute_context_1(900)_generation_3(3)"),
    }
    trace = """
        cell 1ms
        main   |d.......d.......d.......d.......d.......P...................d.......d.......|
        main   |o.......o.......o.......o.......o.......o...................o.......o.......|
        gpu 7  |KKKKKKK.KKKKKKK.KKKKKKK.KKKKKKK.KKKKKKK.KKKKKKKKKKKKKKKKKKK.KKKKKKK.KKKKKKK.|
    """
    assert find(StepOutliers, trace, legend=legend) == ()
    # If it only generates tokens as well, the step stands out, and so it does without annotations.
    assert find(StepOutliers, trace, legend={**legend, "P": legend["d"]}) != ()


def slow_steps(*slow: int, share: float = 0.0, operators: bool = True) -> Trace:
    """Twenty steps of 10 ms; some of 60 ms. A figure is drawn for a share of the run."""
    builder, at_ms = TraceBuilder(), 0
    for number in range(20):
        end_ms = at_ms + (60 if number in slow else 10)
        builder.step(number, ms(at_ms), ms(end_ms))
        if operators:
            builder.operator("aten::mm", ms(at_ms), ms(at_ms + 8), launches=False)
        at_ms = end_ms
    figure = Line("flow.py", 90, share, "main", "matplotlib.pyplot.pause", "figures")
    return replace(builder.build(), facts=Facts(lines=Lines(16.0, 400, (figure,))))


@pytest.mark.parametrize("operators", [True, False])
def test_side_work_explains_slow_steps(*, operators: bool) -> None:
    # 100 of 300 ms are additional: twice as much as 0.16 of the time, and not as 0.17.
    assert find(StepOutliers, slow_steps(7, 13, share=0.16, operators=operators))
    assert find(StepOutliers, slow_steps(7, 13, share=0.17, operators=operators)) == ()


def test_one_slow_step_of_a_program_without_operators_may_be_chance() -> None:
    assert find(StepOutliers, slow_steps(7))
    assert find(StepOutliers, slow_steps(7, operators=False)) == ()
