"""Findings from the timers of a whole run, drawn: no GPU was throttled for them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from tb_perfadvisor.engine.analyze import analyze_run, run_rule
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.machine.facts import Activity, DeviceTimers, Facts, Line, Lines, Load, RunTimers
from tb_perfadvisor.rules.communication.imbalance import Straggler
from tb_perfadvisor.rules.finding import Finding, Table
from tb_perfadvisor.rules.input.stalls import InputStall
from tb_perfadvisor.rules.steps.variation import StepOutliers
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.testing import draw, run_of
from tb_perfadvisor.trace import Run

MS = 1_000_000
WIDTH = 8
ROWS = 120
"""Of 8 steps each: 960 steps, in parts of 16."""
# The recorded steps wait for nothing.
RECORDED = """
    cell 1ms
    step   |..........|..........|
    main   |o'o'......|o'o'......|
    gpu 7  |KKKKKKKKKK|KKKKKKKKKK|
"""


def timers(
    step_ms: Sequence[float],
    rank: int = 0,
    input_ms: Sequence[float] = (),
    ready_ms: Sequence[float] = (),
) -> RunTimers:
    """Timers of rows of 8 steps, without the time between rows."""
    starts = [0.0]
    for each in step_ms:
        starts.append(starts[-1] + WIDTH * each)
    return RunTimers(
        worker=f"rank{rank}",
        rank=rank,
        first_step=tuple(range(0, WIDTH * len(step_ms), WIDTH)),
        start_ns=tuple(round(each * MS) for each in starts[:-1]),
        end_ns=tuple(round(each * MS) for each in starts[1:]),
        steps=(WIDTH,) * len(step_ms),
        step_ns=tuple(each * MS for each in step_ms),
        input_ns=tuple(each * MS for each in input_ms),
        ready_ns=tuple(each * MS for each in ready_ms),
    )


def run_with(*known: RunTimers) -> Run:
    return replace(run_of(draw(RECORDED)), timers=known)


def found(rule: type[InputStall | Straggler | StepOutliers], run: Run) -> list[Finding]:
    return [*rule().check(Signals(run))]


def device(reduced: Sequence[float], clock_ghz: Sequence[float], reason: str) -> DeviceTimers:
    return DeviceTimers(
        name="NVIDIA A100-SXM4-80GB",
        max_clock_hz=1.41e9,
        clock_hz=tuple(each * 1e9 for each in clock_ghz),
        temperature_c=tuple(91.0 if each else 64.0 for each in reduced),
        power_w=(250.0,) * len(reduced),
        reduced={reason: tuple(reduced)},
    )


def test_an_input_bound_third_is_found_though_the_recorded_steps_do_not_wait() -> None:
    # Steps 321 to 640 take 25 ms and wait 15 of it; all others take 10 ms.
    waits = [15.0 if 40 <= row < 80 else 0.0 for row in range(ROWS)]
    (finding,) = found(InputStall, run_with(timers([10 + each for each in waits], input_ms=waits)))
    # 320 × 15 ms of 640 × 10 + 320 × 25 ms.
    assert finding.run_share == pytest.approx(4_800 / 14_400)
    assert finding.severity == "high"
    assert finding.title == "Feed the loop without making it wait: input takes 33.3 % of the run"
    assert "15.0 ms of 25.0 ms in steps 321 to 640 (33.3 % of all)" in finding.summary
    assert not found(StepOutliers, run_with(timers([10 + e for e in waits], input_ms=waits)))


@pytest.mark.parametrize(
    ("waited_ms", "expected_ms"),
    # The recorded steps wait for 6 of 10 ms each; those of the run for so much of 10 ms.
    [(6.0, 12.0), (0.8, 1.6), (0.0, 12.0)],
)
def test_recorded_steps_that_wait_longer_than_those_of_the_run(
    waited_ms: float, expected_ms: float
) -> None:
    trace = draw("""
        cell 1ms
        step   |..........|..........|
        main   |DDDDDDOOOO|DDDDDDOOOO|
    """)
    known = timers([10.0] * ROWS, input_ms=[waited_ms] * ROWS)
    (finding,) = found(InputStall, replace(run_of(trace), timers=(known,)))
    assert finding.saving is not None
    assert finding.saving.expected_ns == pytest.approx(expected_ms * MS)
    assert finding.saving.high_ns == 12 * MS


def test_what_is_not_known_is_no_wait() -> None:
    assert not found(InputStall, run_with(timers([10.0] * ROWS)))
    assert not found(InputStall, run_with(timers([10.0] * ROWS, input_ms=[0.4] * ROWS)))
    # 0.6 of 10 ms is above 5 %, in every step.
    (finding,) = found(InputStall, run_with(timers([10.0] * ROWS, input_ms=[0.6] * ROWS)))
    assert finding.run_share == pytest.approx(0.06)
    assert "in all steps" in finding.summary


def test_the_rank_that_others_wait_for() -> None:
    # In the second half, rank 1 begins its gradients 6 ms later. All ranks take equally long.
    more = [6.0 if row >= ROWS // 2 else 0.0 for row in range(ROWS)]
    step_ms = [14 + each for each in more]
    ready = [5 + each for each in more]
    others = [timers(step_ms, rank, ready_ms=[5.0] * ROWS) for rank in (0, 2)]
    run = run_with(others[0], timers(step_ms, 1, ready_ms=ready), others[1])
    (finding,) = found(Straggler, run)
    # 480 × 6 ms of 480 × 14 + 480 × 20 ms.
    assert finding.run_share == pytest.approx(2_880 / 16_320)
    assert finding.ranks == (1,)
    assert finding.title == "Speed up rank 1: waiting for it takes 17.6 % of the run"
    assert "6.00 ms later than the others in steps 481 to 960 (50.0 % of all)" in finding.summary
    (table,) = (each for each in finding.evidence if isinstance(each, Table))
    assert table.rows == ((1, 11.0 * MS, None), (0, 5.0 * MS, None), (2, 5.0 * MS, None))
    # What the late rank costs is no riddle of its own.
    assert not found(StepOutliers, run)


def test_a_late_rank_that_waits_for_its_input() -> None:
    ranks = [
        timers([20.0] * ROWS, rank, ready_ms=[wait + 5] * ROWS, input_ms=[wait] * ROWS)
        for rank, wait in ((0, 0.0), (1, 4.0))
    ]
    (finding,) = found(Straggler, run_with(*ranks))
    assert finding.run_share == pytest.approx(0.2)
    assert "It waits 4.00 ms longer for its input." in finding.summary


def test_ranks_that_take_turns_are_not_late() -> None:
    turns = [row // 2 % 2 for row in range(ROWS)]
    ranks = [
        timers([20.0] * ROWS, rank, ready_ms=[9.0 if each == rank else 5.0 for each in turns])
        for rank in (0, 1)
    ]
    assert not found(Straggler, run_with(*ranks))


def test_throttled_clocks() -> None:
    # Steps 641 to 960 at 0.94 instead of 1.41 GHz take 15 ms instead of 10.
    hot = [float(row >= 80) for row in range(ROWS)]
    made = device(hot, [0.94 if each else 1.41 for each in hot], "thermal slowdown")
    run = run_with(replace(timers([10 + 5 * each for each in hot]), device=made))
    (finding,) = found(StepOutliers, run)
    # 320 × 5 ms of 640 × 10 + 320 × 15 ms.
    assert finding.run_share == pytest.approx(1_600 / 11_200)
    assert finding.severity == "high"
    assert finding.title == "Let the GPU keep its clock: thermal slowdown takes 14.3 % of the run"
    assert (
        "0.94 GHz instead of 1.41 GHz in steps 641 to 960 (33.3 % of all), because of thermal"
        " slowdown (91 °C, 250 W), and they take 15.0 ms instead of 10.0 ms" in finding.summary
    )


def test_the_gpu_of_another_rank() -> None:
    hot = [float(row >= 80) for row in range(ROWS)]
    made = device(hot, [0.94 if each else 1.41 for each in hot], "thermal slowdown")
    step_ms = [10 + 5 * each for each in hot]
    (finding,) = found(
        StepOutliers, run_with(timers(step_ms), replace(timers(step_ms, 1), device=made))
    )
    assert finding.title.startswith("Let rank 1's GPU keep its clock: thermal slowdown takes 14.3")
    assert finding.ranks == (1,)


def test_timers_that_saw_no_fetch_do_not_pass_as_no_wait() -> None:
    without, seen = (run_with(timers([10.0] * ROWS, input_ms=each)) for each in ((), [0.0] * ROWS))
    assert run_rule(InputStall(), Signals(without)).status == "not_applicable"
    assert run_rule(InputStall(), Signals(seen)).status == "passed"
    assert run_rule(Straggler(), Signals(seen)).status == "not_applicable"


def test_clocks_that_were_always_reduced_cost_at_most_what_they_lack() -> None:
    made = device([1.0] * ROWS, [0.94] * ROWS, "thermal slowdown")
    (finding,) = found(StepOutliers, run_with(replace(timers([15.0] * ROWS), device=made)))
    assert finding.run_share == pytest.approx(1 - 0.94 / 1.41)
    assert "thermal slowdown takes up to 33.3 % of the run" in finding.title


def test_the_limit_of_power_alone_is_no_fault() -> None:
    made = device([1.0] * ROWS, [1.2] * ROWS, "power cap")
    assert not found(StepOutliers, run_with(replace(timers([15.0] * ROWS), device=made)))


def test_steps_that_become_slower() -> None:
    run = run_with(timers([10.0 if row < 80 else 13.0 for row in range(ROWS)]))
    (finding,) = found(StepOutliers, run)
    # 320 × 3 ms of 640 × 10 + 320 × 13 ms.
    assert finding.run_share == pytest.approx(960 / 10_560)
    assert "after step 640: 13.0 ms instead of 10.0 ms" in finding.summary
    # Twice 60 rows that differ by less than a tenth may differ by chance.
    assert not found(
        StepOutliers, run_with(timers([10.0 + (row >= 60) / 2 for row in range(ROWS)]))
    )


@pytest.mark.parametrize(("differs_ms", "count"), [(2.0, 1), (4.9, 1), (5.1, 0), (9.0, 0)])
def test_steps_without_a_pace_do_not_become_slower(differs_ms: float, count: int) -> None:
    # The first either launch or wait: 10 ms in the middle, and by as much more or less.
    step_ms = [10.0 + differs_ms * (row // 2 % 3 - 1) if row < 24 else 20.0 for row in range(ROWS)]
    assert len(found(StepOutliers, run_with(timers(step_ms)))) == count


@pytest.mark.parametrize(("others", "count"), [(0.2, 1), (0.25, 0)])
def test_steps_that_become_slower_on_cores_that_others_use(others: float, count: int) -> None:
    # 3 of 13 ms are 23 %.
    steps = draw(RECORDED[: RECORDED.index("    gpu")])
    slower = timers([10.0 if row < 80 else 13.0 for row in range(ROWS)])
    run = run_of(replace(steps, facts=Facts(load=Load(others, 0.0))))
    assert len(found(StepOutliers, replace(run, timers=(slower,)))) == count


def test_what_costs_most_of_the_run_comes_first() -> None:
    waits = [15.0 if 40 <= row < 80 else 0.0 for row in range(ROWS)]
    analysis = analyze_run(
        run_with(timers([10 + each for each in waits], input_ms=waits)), Config()
    )
    assert analysis.findings[0].rule.id == "input-stall"
    assert analysis.headline.startswith("Feed the loop without making it wait: input takes 33.3 %")


def test_steps_that_grow_name_the_function_where_the_time_goes() -> None:
    lines = Lines(10.0, 200, (Line("data.py", 35, 0.6, "collect"),))
    steps = draw(RECORDED[: RECORDED.index("    gpu")])
    run = run_of(replace(steps, facts=Facts(lines=lines)))
    slower = timers([10.0 + row / 20 for row in range(ROWS)])
    (finding,) = found(StepOutliers, replace(run, timers=(slower,)))
    assert finding.title.startswith("Find out what grows from step to step: that takes")
    assert finding.title.endswith("of the run, mostly in collect (data.py:35)")


@pytest.mark.parametrize(
    ("activity", "is_in_loop", "severity"),
    [("Python", False, "high"), ("Python", True, "low"), ("calls", True, "high")],
)
def test_a_loop_in_each_step_may_have_more_to_do(
    activity: Activity, *, is_in_loop: bool, severity: str
) -> None:
    line = Line("sum.py", 35, 0.6, "add", activity=activity, is_in_loop=is_in_loop)
    steps = draw(RECORDED[: RECORDED.index("    gpu")])
    run = run_of(replace(steps, facts=Facts(lines=Lines(10.0, 200, (line,)))))
    slower = timers([10.0 + row / 5 for row in range(ROWS)])
    (finding,) = found(StepOutliers, replace(run, timers=(slower,)))
    assert finding.severity == severity


@pytest.mark.parametrize(("spells", "count"), [((25, 23), 1), ((2, 1), 0)])
def test_steps_that_do_something_else_later_do_not_become_slower(
    spells: tuple[int, int], count: int
) -> None:
    # Looks at two lines of equal time, at random: every second one finds the other line.
    lines = tuple(
        Line("sum.py", place, 0.5, "add", spells=seen) for place, seen in enumerate(spells, 1)
    )
    steps = draw(RECORDED[: RECORDED.index("    gpu")])
    run = run_of(replace(steps, facts=Facts(lines=Lines(4.0, 100, lines))))
    slower = timers([10.0 if row < 80 else 13.0 for row in range(ROWS)])
    assert len(found(StepOutliers, replace(run, timers=(slower,)))) == count
