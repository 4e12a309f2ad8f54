"""How the advice is judged, on reports whose verdict is plain."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from advice_cases import Case, Gain, recorded
from advice_verdicts import case_table, judge, misses, score
from recorded_pairs.catalog import (
    CPU_PAIRS,
    FIRST_PAIRS,
    JAX_PAIRS,
    KERAS_PAIRS,
    PAIRS,
    split_of,
)
from tb_perfadvisor import analyze
from tb_perfadvisor.report.report import Report
from tb_perfadvisor.testing import draw

SLOW = """
    cell 1ms
    step   |..........|..........|
    main   |DDDDoo....|DDDDoo....|
    gpu 7  |.....KKKKK|.....KKKKK|
"""
HEALTHY = """
    cell 1ms
    step   |.....|.....|
    main   |oo...|oo...|
    gpu 7  |KKKKK|KKKKK|
"""


def case(
    drawing: str, first: tuple[str, ...], gain: Gain | None = None, still: tuple[str, ...] = ()
) -> Case:
    def analyze_drawing() -> Report:
        return analyze(draw(drawing))

    return Case("drawn here", "drawn", "", first, still, gain, analyze_drawing)


def gain_ms(saved: float, noise: float = 0.0) -> Gain:
    return Gain(slow_ns=10e6, saved_ns=saved * 1e6, noise_ns=noise * 1e6)


def test_a_cause_that_is_found_with_the_true_gain() -> None:
    # 4 of 10 ms are fetching; several workers load already, at twice whose pace half of
    # the 4 ms are saved at the least. The middle is expected.
    verdict = judge(case(SLOW, ("input-stall",), gain_ms(3)))
    assert verdict.is_cause_first is True
    assert verdict.is_in_range is True
    assert verdict.width == pytest.approx((4 - 2) / 3)
    assert verdict.error == 0


def test_a_specific_label_is_met_by_the_general_rule_that_it_refines() -> None:
    assert judge(case(SLOW, ("slow-batch",))).is_cause_first is True
    assert judge(case(SLOW, ("recompilation",))).is_cause_first is False


def test_an_error_counts_beyond_the_noise_only() -> None:
    # Expected are 3 ms, and 4 at most; 5 are true, give or take half a millisecond.
    verdict = judge(case(SLOW, ("input-stall",), gain_ms(5, 0.5)))
    assert verdict.is_in_range is False
    assert verdict.error == pytest.approx((5 - 3 - 0.5) / 5)
    assert judge(case(SLOW, ("input-stall",), gain_ms(5, 1.0))).is_in_range is True


def test_a_cause_that_is_not_found_is_a_whole_error() -> None:
    verdict = judge(case(HEALTHY, ("input-stall",), gain_ms(4)))
    assert (verdict.is_cause_first, verdict.is_in_range, verdict.error) == (False, False, 1.0)
    assert verdict.width is None


def test_findings_in_a_healthy_program_are_false_alarms_unless_they_are_known_to_be_true() -> None:
    (alarm,) = judge(case(SLOW, ())).alarms
    assert (alarm.rule_id, alarm.severity) == ("input-stall", "high")
    assert judge(case(SLOW, (), still=("input-stall",))).alarms == ()
    assert judge(case(HEALTHY, ())).alarms == ()


def test_the_score_of_several() -> None:
    verdicts = [
        judge(case(SLOW, ("input-stall",), gain_ms(3))),
        judge(case(HEALTHY, ("input-stall",), gain_ms(4))),
        judge(case(SLOW, ())),
        judge(case(HEALTHY, ())),
    ]
    summed = score(verdicts)
    assert (summed.cases, summed.healthy) == (2, 2)
    assert (summed.cause_first, summed.in_range) == (0.5, 0.5)
    assert (summed.high_alarms, summed.medium_alarms) == (1, 0)
    assert (summed.width, summed.error) == (2 / 3, 0.5)


def test_every_miss_is_listed_with_why() -> None:
    verdicts = [judge(case(HEALTHY, ("input-stall",), gain_ms(4)))]
    (rule, line) = misses(verdicts, {"drawn here": "because"})
    assert "input-stall" in rule
    assert "cause not first in 1 of 1 (nothing is) – because" in line
    assert "4.0 ± 0.0 of 10.0 ms (40 %)" in list(case_table(verdicts))[2]


def test_recorded_pairs_are_read_with_their_true_gain(tmp_path: Path) -> None:
    # Of five repetitions the middle gain is the truth; noise is half of what the middle three span.
    for number, fixed_ms in enumerate((60, 70, 50, 64, 100)):
        target = tmp_path / PAIRS[0].name / str(number)
        target.mkdir(parents=True)
        times = {"slow": {"step_ns": 100_000_000}, "fixed": {"step_ns": fixed_ms * 1_000_000}}
        (target / "times.json").write_text(json.dumps(times))
    slow, fixed, *_ = recorded(tmp_path)
    assert slow.gain == Gain(slow_ns=100e6, saved_ns=36e6, noise_ns=5e6)
    assert (slow.first, fixed.first, fixed.gain) == (PAIRS[0].first, (), None)
    assert slow.split == fixed.split == "tune"


def test_half_of_the_recorded_pairs_are_never_tuned_on() -> None:
    splits = [split_of(pair) for pair in PAIRS]
    assert len({pair.name for pair in PAIRS}) == len(PAIRS) >= 20
    shown = [pair for pair in PAIRS if pair.has_shown_a_bug]
    lots = (FIRST_PAIRS, CPU_PAIRS, JAX_PAIRS, KERAS_PAIRS)
    assert sum(map(len, lots)) == len(PAIRS)
    assert splits.count("test") == sum(len(lot) // 2 for lot in lots) - len(shown)
    assert {split_of(pair) for pair in shown} == {"tune"}
    assert {pair.framework for pair in PAIRS} == {"pytorch", "tensorflow", "jax"}
