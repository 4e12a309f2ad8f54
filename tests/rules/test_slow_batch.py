"""Also fires on recordings of Grain with one late sample (tests/frameworks)."""

from __future__ import annotations

import pytest

from tb_perfadvisor.rules.input.stalls import SlowBatch
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.testing.symbols import host
from tb_perfadvisor.trace import EventKind

SINGLE = {
    "D": host("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", EventKind.INPUT_WAIT)
}
USUAL = ("....", "Doo.", "..KK")
LATE = ("." * 10, "DDDDDDDoo.", "........KK")


def drawing(steps: list[tuple[str, str, str]]) -> str:
    markers, main, gpu = ("|".join(lane) for lane in zip(*steps, strict=True))
    return f"""
        cell 1ms
        step  |{markers}|
        main  |{main}|
        gpu 7 |{gpu}|
    """


SLOW = drawing([USUAL, USUAL, USUAL, LATE, USUAL, USUAL])
FIXED = drawing([USUAL] * 6)


def test_saves_what_the_fix_saves() -> None:
    # The late batch takes 7 ms instead of 1: 6 ms over 6 steps.
    checked = check_rule(SlowBatch, slow=SLOW, fixed=FIXED, saves="1ms", legend=SINGLE)
    finding = checked.findings[0]
    assert "7.00 ms" in finding.summary
    assert "up to 7.00 ms in step 3, against a median of 1.00 ms" in finding.summary
    assert finding.saving is not None
    # Nobody knows whether a single slow batch comes again.
    assert (finding.saving.low_ns, finding.saving.high_ns) == (0, 6_000_000)


def test_the_first_fetch_starts_the_pipeline() -> None:
    assert find(SlowBatch, drawing([LATE, *[USUAL] * 9])) == ()


def test_periodic_slow_fetches_are_not_reported() -> None:
    # Every fifth of twenty: five workers that deliver in turns.
    turn = [USUAL, USUAL, USUAL, USUAL, LATE]
    assert find(SlowBatch, drawing(turn * 4)) == ()
    uneven = [*[USUAL] * 3, LATE, *[USUAL] * 6, LATE, *[USUAL] * 2, LATE, *[USUAL] * 8]
    (finding,) = find(SlowBatch, drawing(uneven)) or ()
    assert "3 of 22 fetches take up to 7.00 ms" in finding.summary
    assert "in step 3, 10, 13, against" in finding.summary
    # Low leaves out one part in the square root of three: 18 ms x (1 - 0.577).
    (finding,) = find(SlowBatch, drawing(uneven), legend=SINGLE) or ()
    assert finding.saving is not None
    assert finding.saving.low_ns == pytest.approx(7_607_695, abs=1)


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({"factor": 6.9}, 1),  # 7 ms against 1 ms
        ({"factor": 7.1}, 0),
        ({"minimum_share": 0.19}, 1),  # 6 ms of 30 ms are 20 %
        ({"minimum_share": 0.21}, 0),
        ({"minimum_fetches": 6}, 1),
        ({"minimum_fetches": 7}, 0),
        ({"maximum_share": 0.17}, 1),  # one of six is 0.167
        ({"maximum_share": 0.16}, 0),
    ],
)
def test_just_below_and_just_above_the_limits(settings: dict[str, float], count: int) -> None:
    assert len(find(SlowBatch, SLOW, settings=settings) or ()) == count
