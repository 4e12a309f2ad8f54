from __future__ import annotations

from pathlib import Path

import pytest

from tb_perfadvisor import analyze
from tb_perfadvisor.rules.launch.host_work import PythonOverhead
from tb_perfadvisor.rules.steps.variation import PeriodicSpikes, StepOutliers
from tb_perfadvisor.testing import check_rule, find

SLOW = """
    cell 1ms
    step   |...|........|...|........|...|........|
    main   |oo.|ouuuuuo.|oo.|ouuuuuo.|oo.|ouuuuuo.|
    gpu 7  |KKK|K.....KK|KKK|K.....KK|KKK|K.....KK|
"""
FIXED = """
    cell 1ms
    step   |...|...|...|...|...|...|
    main   |oo.|oo.|oo.|oo.|oo.|oo.|
    gpu 7  |KKK|KKK|KKK|KKK|KKK|KKK|
"""
WITHOUT_A_NAME = SLOW.replace("uuuuu", ".....")


def test_saves_what_the_fix_saves() -> None:
    # 5 ms in every second step.
    checked = check_rule(PeriodicSpikes, slow=SLOW, fixed=FIXED, saves=2_500_000)
    (finding,) = checked.findings
    assert finding.summary.startswith("Every 2nd step (1, 3, 5) takes 5.00 ms longer")
    assert finding.summary.endswith("the host is in ## RecMetricModule:update ##.")


def test_says_that_nothing_was_recorded() -> None:
    (finding,) = find(PeriodicSpikes, WITHOUT_A_NAME) or ()
    assert finding.summary.endswith("(unexplained): the host does something unrecorded.")


def test_spikes_in_half_of_the_steps_are_not_outliers() -> None:
    assert find(StepOutliers, SLOW) == ()
    assert find(PythonOverhead, SLOW) == ()


def test_periodic_computing_is_left_alone() -> None:
    trace = """
        cell 1ms
        step   |...|......|...|......|...|......|
        main   |oo.|oo....|oo.|oo....|oo.|oo....|
        gpu 7  |KKK|KKKKKK|KKK|KKKKKK|KKK|KKKKKK|
    """
    assert find(PeriodicSpikes, trace) == ()


def test_spikes_at_unequal_distances_are_left_alone() -> None:
    # Spikes at 1, 2 and 5.
    trace = """
        cell 1ms
        step   |...|........|........|...|...|........|
        main   |oo.|ouuuuuo.|ouuuuuo.|oo.|oo.|ouuuuuo.|
        gpu 7  |KKK|K.....KK|K.....KK|KKK|KKK|K.....KK|
    """
    assert find(PeriodicSpikes, trace) == ()


def test_spikes_that_stop_are_left_alone() -> None:
    # Spikes at 0, 2 and 4 of ten steps.
    spike, plain = ("........", "ouuuuuo.", "K.....KK"), ("...", "oo.", "KKK")
    steps = [spike, plain, spike, plain, spike, *[plain] * 5]
    lanes = zip(("step", "main", "gpu 7"), zip(*steps, strict=True), strict=True)
    trace = "\n".join(["cell 1ms", *(f"{name} |{'|'.join(cells)}|" for name, cells in lanes)])
    assert find(PeriodicSpikes, trace) == ()


def test_rare_spikes_are_divided_by_their_period() -> None:
    # Spikes at 0, 3 and 6 of seven steps: a spike in every third step makes 7/3 spikes, not 3.
    spike, plain = ("........", "ouuuuuo.", "K.....KK"), ("...", "oo.", "KKK")
    steps = [spike, plain, plain, spike, plain, plain, spike]
    lanes = zip(("step", "main", "gpu 7"), zip(*steps, strict=True), strict=True)
    trace = "\n".join(["cell 1ms", *(f"{name} |{'|'.join(cells)}|" for name, cells in lanes)])
    (finding,) = find(PeriodicSpikes, trace) or ()
    saving = finding.saving
    assert saving is not None
    assert saving.expected_ns == round(5_000_000 * 7 / 3)
    assert saving.high_ns == 15_000_000


def test_just_below_and_just_above_the_limit() -> None:
    # 15 of 33 ms.
    assert find(PeriodicSpikes, SLOW, settings={"minimum_share": 0.46}) == ()
    assert len(find(PeriodicSpikes, SLOW, settings={"minimum_share": 0.45}) or ()) == 1


def test_too_few_steps_are_not_applicable() -> None:
    trace = """
        cell 1ms
        step   |...|........|...|........|
        main   |oo.|ouuuuuo.|oo.|ouuuuuo.|
        gpu 7  |KKK|K.....KK|KKK|K.....KK|
    """
    assert find(PeriodicSpikes, trace) is None


def test_finds_a_recorded_sleep_in_every_second_step(corpus: Path) -> None:
    # The script sleeps 20 ms in every second of its six steps, with nothing recorded.
    report = analyze(corpus / "local-tf-cpu" / "custom_loop_trace_steps")
    first = report.findings[0]
    assert first.rule_id == "periodic-spikes"
    assert first.summary.startswith("Every 2nd step (1, 3, 5) takes 20.4 ms longer")
    assert first.saving is not None
    # Half of 20 ms in a mean step of 34.35 ms.
    assert first.saving.share_expected == pytest.approx(10 / 34.35, abs=0.02)
