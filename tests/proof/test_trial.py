"""Trials of a made-up program, whose clock the tests control."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from tb_perfadvisor.errors import PerfAdvisorError
from tb_perfadvisor.machine.facts import Load
from tb_perfadvisor.proof.runs import BLOCKS_IN_TURNS, Counters, Run
from tb_perfadvisor.proof.trial import Trial, try_change
from tests.proof.stand_ins import BASE, CHANGE, Noise, Program, wandering
from tests.support.night import IS_NIGHT

QUIET, BUSY = Load(others=0.0, idle=0.5), Load(others=0.4, idle=0.1)
PER_STEP = Counters(0, 1, 1, 8, 1024)


def tried(program: Program, budget_s: float = 600.0, may_differ: str = "") -> Trial:
    return try_change(
        program,
        BASE,
        CHANGE,
        "change",
        budget_s=budget_s,
        may_differ=may_differ,
        clock=program.clock,
    )


def test_a_faster_change_with_noise() -> None:
    # 18 % less, with 1 % of noise between runs and 5 % between blocks.
    trial = tried(Program(change=0.82, noise=wandering(1, 0.01, 0.05)))
    assert (trial.verdict, trial.results.agreement) == ("faster", "equal")
    assert trial.effect is not None
    assert trial.effect.low < 0.18 < trial.effect.high
    assert trial.effect.high - trial.effect.low < 0.2


def test_steps_of_ten_milliseconds_take_less_than_two_minutes() -> None:
    for seed, change in enumerate((0.82, 1.2, 1.0, 0.5)):
        # A quiet machine: a run differs from the next by 0.5 %.
        program = Program(0.010, change, noise=wandering(seed, 0.004, 0.005), start_up_s=4.0)
        assert tried(program).verdict in ("faster", "slower", "no difference")
        assert program.now_s < 120, (change, program.ran)


def test_changes_that_do_nothing_are_not_called_faster_or_slower() -> None:
    found: Counter[str] = Counter()
    seeds = range(50 if IS_NIGHT else 15)
    for seed in seeds:
        noise = wandering(seed, per_run=0.01, per_block=0.03, keeps=0.9)
        found[tried(Program(change=1.0, noise=noise), budget_s=3600).verdict] += 1
    # Less than one percent of 50 trials is none.
    assert found["faster"] + found["slower"] == 0, found
    assert found["no difference"] >= 0.8 * len(seeds), found


def test_a_pause_of_the_machine_does_not_count() -> None:
    def pauses(run: int, block: int) -> float:
        return 20.0 if block == run % 12 else 1.0

    assert tried(Program(change=1.0, noise=pauses)).verdict == "no difference"


def test_the_orders_of_pairs_cancel_a_drift() -> None:
    # Each run is 1 % slower than the one before, as on a laptop that becomes hot.
    program = Program(change=1.0, noise=lambda run, block: 1.01**run)
    trial = tried(program, budget_s=3600)
    assert trial.verdict == "no difference"
    pairs = [tuple(program.ran[at : at + 2]) for at in range(0, len(program.ran), 2)]
    assert Counter(pairs)["base", "change"] == Counter(pairs)["change", "base"]


def test_turns_share_how_fast_the_machine_is() -> None:
    # Cores change their speed by 30 % from run to run.
    def wanders(seed: int) -> Noise:
        return wandering(seed, per_run=0.3, per_block=0.1)

    apart = tried(Program(change=0.9, noise=wanders(5)), budget_s=120)
    assert (apart.verdict, apart.in_turns) == ("undecided", False)
    trial = tried(Program(change=0.9, noise=wanders(5), in_turns=True), budget_s=120)
    assert (trial.verdict, trial.in_turns, trial.pairs) == ("faster", True, 3)
    assert trial.effect is not None
    assert trial.effect.estimate == pytest.approx(0.1)
    assert trial.steps_per_run % BLOCKS_IN_TURNS == 0


def test_blocks_of_a_turn_that_others_disturb_do_not_count() -> None:
    loads = [0.6 if block % 3 == 0 else 0.0 for block in range(24)]
    program = Program(
        change=0.9,
        noise=lambda run, block: 1.0 if run < 2 or block % 3 else 1.5 + 0.2 * (run % 4),
        in_turns=True,
        block_loads=loads,
    )
    trial = tried(program)
    assert trial.effect is not None
    assert trial.effect.estimate == pytest.approx(0.1)


def test_rare_work_counts_in_turns() -> None:
    # A checkpoint in one block of 24 takes as long as ten blocks, and the change leaves it out.
    class Saves(Program):
        def measure_in_turns(self, *versions: Any, **options: Any) -> tuple[Run, Run]:
            old, new = super().measure_in_turns(*versions, **options)
            block_ns = old.counters[1].at_ns - old.counters[0].at_ns
            late = [replace(each, at_ns=each.at_ns + 9 * block_ns) for each in old.counters[6:]]
            return replace(old, counters=(*old.counters[:6], *late)), new

    trial = tried(Saves(change=1.0, in_turns=True, block_loads=[0.0] * 24))
    assert trial.verdict == "faster"
    assert trial.effect is not None
    assert trial.effect.estimate == pytest.approx(9 / 33)


def test_a_program_that_ends_in_its_turn_gets_shorter_blocks() -> None:
    # It makes 225 steps: 12 blocks of 17 steps after the first ten, but not 24 of 11.
    class Ends(Program):
        def measure_in_turns(self, *versions: Any, **options: Any) -> tuple[Run, Run]:
            old, new = super().measure_in_turns(*versions, **options)
            if old.steps <= 225:
                return old, new
            ended = replace(old, steps=225, is_complete=False)
            return ended, replace(new, steps=200, is_complete=False, problem="it was ended")

    trial = tried(Ends(change=0.9, in_turns=True), budget_s=120)
    assert (trial.verdict, trial.in_turns, trial.steps_per_run) == ("faster", True, 24 * 8)


@pytest.mark.parametrize(
    ("start_up_s", "budget_s", "windows"),
    [(2.0, 600.0, 1), (7.5, 600.0, 3), (60.0, 3600.0, 4), (7.5, 255.0, 2), (60.0, 600.0, 1)],
)
def test_programs_that_take_long_to_start_are_measured_for_as_long(
    start_up_s: float, budget_s: float, windows: int
) -> None:
    # Eight pairs fit into the budget. Of 255 s, the first one leaves 235 s: enough for eight times
    # two runs of 7.5 s + 5 s, but not of 7.5 s + 7.5 s.
    trial = tried(Program(change=0.8, start_up_s=start_up_s, in_turns=True), budget_s)
    # 2.5 s in 24 blocks are 11 steps of 10 ms, less a fifth in one of both versions.
    assert trial.steps_per_run == windows * 24 * 12


def test_a_longer_window_needs_fewer_pairs() -> None:
    def pairs(start_up_s: float) -> int:
        found = 0
        for seed in range(8):
            noise = wandering(seed, per_run=0.0, per_block=0.06, keeps=0.0)
            program = Program(noise=noise, start_up_s=start_up_s, in_turns=True, has_own_noise=True)
            trial = tried(program, budget_s=3600)
            assert trial.verdict == "no difference"
            found += trial.pairs
        return found

    assert pairs(start_up_s=10.0) < 0.7 * pairs(start_up_s=1.0)


def test_a_program_that_ends_in_a_long_window_gets_a_short_one() -> None:
    class Ends(Program):
        def measure_in_turns(self, *versions: Any, **options: Any) -> tuple[Run, Run]:
            old, new = super().measure_in_turns(*versions, **options)
            if old.steps <= 300:
                return old, new
            return replace(old, steps=300, is_complete=False), replace(
                new, steps=300, is_complete=False
            )

    trial = tried(Ends(change=0.9, start_up_s=8.0, in_turns=True))
    assert (trial.verdict, trial.in_turns, trial.steps_per_run) == ("faster", True, 24 * 11)


def test_a_program_that_cannot_run_beside_itself_runs_alone() -> None:
    class WantsAPort(Program):
        def measure_in_turns(self, *versions: Any, **options: Any) -> tuple[Run, Run]:
            old, new = super().measure_in_turns(*versions, **options)
            return old, replace(new, problem="it ended with status 1: address already in use")

    trial = tried(WantsAPort(change=0.8, in_turns=True))
    assert (trial.verdict, trial.in_turns) == ("faster", False)


def test_a_disturbed_pair_is_repeated() -> None:
    # The fourth run, of the second pair, is disturbed: others use 40 % of the cores and no longer.
    program = Program(
        change=1.0,
        loads=(*[QUIET] * 3, BUSY, QUIET),
        noise=lambda run, block: 1.5 if run == 3 else 1.0,
    )
    trial = tried(program)
    assert (trial.verdict, trial.pairs, trial.repeated) == ("no difference", 3, 1)
    assert len(program.ran) == 2 * 4


def test_a_machine_that_is_always_busy_gets_a_verdict() -> None:
    # Every pair is disturbed: each is repeated twice and then counts, with its spread.
    trial = tried(Program(change=0.5, loads=[QUIET, BUSY] * 200), budget_s=3600)
    assert (trial.verdict, trial.pairs, trial.repeated) == ("faster", 3, 4)


def test_a_change_that_leaves_less_to_others_is_not_disturbed() -> None:
    # It uses all cores, so that others get 10 % where they had 40 %.
    program = Program(change=0.5, loads=[BUSY, Load(others=0.1, idle=0.0)] * 10)
    assert tried(program).repeated == 0


def test_unknown_load_disturbs_nothing() -> None:
    trial = tried(Program(change=0.5, loads=[None]))
    assert (trial.repeated, trial.load) == (0, None)


def test_a_version_that_warms_up_for_longer_is_measured_later() -> None:
    # It compiles: 200 steps of warm-up instead of 10, in blocks of 21 steps.
    trial = tried(Program(change=0.5, warm_up={CHANGE: 200}))
    assert trial.verdict == "faster"
    assert trial.effect is not None
    assert trial.effect.estimate == pytest.approx(0.5)


def test_the_budget_ends_a_trial() -> None:
    program = Program(change=0.9, noise=wandering(3, 0.3, 0.05))
    trial = tried(program, budget_s=60.0)
    assert (trial.verdict, trial.reason) == ("undecided", "the budget was spent")
    assert program.now_s <= 60


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        # 4 of 8 samples, and so half of the input.
        (Counters(0, 1, 1, 4, 512), "input elements: 512 per step instead of 1,024"),
        # Shorter sequences of as many samples.
        (Counters(0, 1, 1, 8, 512), "input elements: 512 per step instead of 1,024"),
        (Counters(0, 1, 0, 8, 1024), "backward passes: 0 per step instead of 1"),
        # A step of the program is one of the optimizer: it skips every second one.
        (
            Counters(0, 1, 2, 16, 2048),
            "optimizer steps: 0.5 times as many for the same samples",
        ),
    ],
)
def test_skipped_work_is_refused_by_name(changed: Counters, reason: str) -> None:
    program = Program(change=0.5, work={BASE: PER_STEP, CHANGE: changed})
    trial = tried(program)
    assert (trial.verdict, trial.reason) == ("refused", reason)
    assert len(program.ran) == 2  # nothing more is run


def test_skipped_samples_are_named_where_no_module_is_called() -> None:
    program = Program(
        change=0.5,
        work={BASE: Counters(0, 1, 1, 8, 0), CHANGE: Counters(0, 1, 1, 7, 0)},
    )
    assert tried(program).reason == "samples: 7 per step instead of 8"


def test_a_changed_loss_is_refused() -> None:
    halved = [1.0 - 0.005 * step for step in range(50)]
    trial = tried(Program(change=0.5, losses={CHANGE: halved}))
    # The losses of the original are 2.0 to 1.51, 1.755 in the mean; half of that is 50 %, and the
    # first one differs by 1.0 of 1.755, which is 57 %.
    assert (trial.verdict, trial.reason) == ("refused", "loss: differs by 57 %")


@pytest.mark.parametrize("bad", [[None] * 50, [2.0, None]])
def test_a_loss_that_is_no_number_any_more_is_refused(bad: list[float | None]) -> None:
    trial = tried(Program(change=0.5, losses={CHANGE: bad}))
    assert (trial.verdict, trial.reason) == ("refused", "loss: no number")


def test_small_differences_need_a_reason() -> None:
    rounded = [1.004 * (2.0 - 0.01 * step) for step in range(50)]
    losses: Any = {CHANGE: rounded}
    assert tried(Program(change=0.5, losses=losses)).verdict == "refused"
    trial = tried(Program(change=0.5, losses=losses), may_differ="less precise")
    assert (trial.verdict, trial.results.agreement) == ("faster", "close")
    assert "less precise" in trial.results.text


def test_other_orders_of_summation_are_equal() -> None:
    almost = [(1 + 1e-6 * 1.1**step) * (2.0 - 0.01 * step) for step in range(50)]
    assert tried(Program(change=0.5, losses={CHANGE: almost})).results.agreement == "equal"


def test_a_change_that_fails_says_how() -> None:
    program = Program(problems=["", "it ended with status 1: NameError: x"])
    trial = tried(program)
    assert (trial.verdict, trial.reason) == ("failed", "it ended with status 1: NameError: x")


def test_a_program_that_cannot_be_measured_is_an_error() -> None:
    with pytest.raises(PerfAdvisorError, match="none of its steps was seen"):
        tried(Program(problems=["none of its steps was seen"]))
