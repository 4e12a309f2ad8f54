"""Which steps a run measures."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tb_perfadvisor.instrument.measure import Window


def moments(window: Window, durations_s: Iterable[float]) -> dict[int, str]:
    """What is not "inside", "warming up" or "after", by the number of steps."""
    now_s, found = 0.0, {}
    for number, duration_s in enumerate(durations_s, 1):
        now_s += duration_s
        moment = window.step_ended(round(now_s * 1e9))
        if moment in ("begin", "block", "end"):
            found[number] = moment
    return found


def plan(**given: Any) -> dict[str, Any]:
    return {"blocks": 3, "window_s": 0.6, "begin": None, "block_steps": None, **given}


def test_the_first_run_chooses() -> None:
    # Ten even steps are warm-up. A block takes 0.6 s / 3, which are 20 steps of 10 ms.
    window = Window(plan())
    assert moments(window, [0.010] * 100) == {10: "begin", 30: "block", 50: "block", 70: "end"}
    assert (window.begin, window.block_steps) == (10, 20)


def test_steps_that_compile_are_warm_up() -> None:
    # The last long step is the 8th; after step 13 the last five are even.
    found = moments(Window(plan()), [5.0] + [0.01] * 6 + [5.0] + [0.01] * 100)
    assert min(found) == 13


def test_long_steps_need_fewer() -> None:
    # Five even durations, of six steps; then blocks of two steps.
    found = moments(Window(plan()), [2.0] * 20)
    assert found == {6: "begin", 8: "block", 10: "block", 12: "end"}


def test_later_runs_measure_the_same_steps_or_whole_blocks_later() -> None:
    given = plan(begin=10, block_steps=20)
    assert moments(Window(given), [0.02] * 100) == {
        10: "begin",
        30: "block",
        50: "block",
        70: "end",
    }
    # The 8th step is long, so that this run is warm after step 13: a block later than step 10.
    assert min(moments(Window(given), [0.01] * 7 + [9.0] + [0.01] * 100)) == 30


def test_steps_that_never_settle_are_measured_in_the_end() -> None:
    assert min(moments(Window(plan()), [0.01, 0.01, 9.0] * 100)) == 200
