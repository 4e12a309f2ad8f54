"""Marks of recordings that got slower or faster."""

from __future__ import annotations

import pytest

from tb_perfadvisor.comparison.compare import compare_facts
from tb_perfadvisor.comparison.interval import mark, pace_of
from tb_perfadvisor.contract.run_row import Pace
from tests.support.comparison_facts import facts

MS = 1_000_000
STEADY = [10 * MS + place * 1_000 for place in range(30)]


def pace(*step_ns: int, **fields: object) -> Pace:
    made = pace_of(facts(*step_ns, **fields))
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("factor", "verdict"), [(1.2, "slower"), (0.8, "faster"), (1.005, "inconclusive")]
)
def test_the_mark_is_the_verdict_of_the_comparison(factor: float, verdict: str) -> None:
    changed = [round(step * factor) for step in STEADY]
    made = mark("before", pace(*STEADY), pace(*changed))
    assert made is not None
    assert (made.base, made.verdict) == ("before", verdict)
    assert made.change_share == pytest.approx(factor - 1, rel=1e-3)
    (target,) = compare_facts(facts(*STEADY), [facts(*changed)]).targets
    assert target.verdict == verdict


def test_many_steps_are_thinned_and_give_the_same_verdict() -> None:
    many = [10 * MS + place * 100 for place in range(5_000)]
    thin = pace(*many)
    assert len(thin.block_ns) == 40
    assert (sum(thin.block_ns), sum(thin.block_steps)) == (sum(many), 5_000)
    made = mark("x", thin, pace(*(step * 2 for step in many)))
    assert made is not None
    assert made.verdict == "slower"


def test_recordings_of_other_work_are_not_compared() -> None:
    other = facts(*STEADY)
    other = type(other)(
        **{
            **{name: getattr(other, name) for name in other.__struct_fields__},
            "step_source": "something else",
        }
    )
    made = pace_of(other)
    assert made is not None
    assert mark("x", pace(*STEADY), made) is None


def test_without_steps_or_with_half_a_file_there_is_no_pace() -> None:
    assert pace_of(facts()) is None
    assert pace_of(facts(*STEADY, is_truncated=True)) is None


def test_a_single_step_proves_nothing() -> None:
    made = mark("x", pace(10 * MS), pace(20 * MS))
    assert made is not None
    assert made.verdict == "inconclusive"
