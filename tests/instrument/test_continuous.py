from __future__ import annotations

import logging
import sys
from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace

from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.ingest.recorded_facts import decode_facts
from tb_perfadvisor.instrument.continuous.profiler import SWITCH, ContinuousProfiler
from tb_perfadvisor.instrument.continuous.recorders import Recordings, StoredRecording
from tb_perfadvisor.instrument.continuous.schedule import Plan, Schedule, Start
from tb_perfadvisor.machine.facts import Recording

FACTS = "mine.perfadvisor.json"
PERIODIC = Start("periodic", is_rich=False)


def starts(schedule: Schedule, durations_s: list[float | None]) -> dict[int, Start]:
    """The answers that start a recording, by the number of steps so far. Recordings take no step.

    Args:
        schedule: A new one.
        durations_s: Of the steps.
    """
    found = {}
    for number, duration_s in enumerate(durations_s, 1):
        start = schedule.step_ended(duration_s)
        if start is not None:
            found[number] = start
    return found


def test_recordings_are_periodic_and_now_and_then_rich() -> None:
    found = starts(Schedule(Plan(every=100, first=20, rich_every=3)), [0.1] * 350)
    assert found == {
        20: PERIODIC,
        120: PERIODIC,
        220: Start("periodic", is_rich=True),
        320: PERIODIC,
    }


def test_the_first_waits_until_the_times_have_settled() -> None:
    # 28 steps of warm-up, each half as long as the one before; then the last five must be even.
    warm_up = [2.0**-number for number in range(28)]
    found = starts(Schedule(Plan(first=20)), [*warm_up, *[2.0**-28] * 20])
    # After step 31: 2^-26, 2^-27 and three of 2^-28 have the median 2^-28, a quarter of the
    # longest. After step 32, the longest is 2^-27, twice the median.
    assert list(found) == [32]


def test_a_recording_has_a_whole_cycle() -> None:
    def steps(durations_s: list[float]) -> int:
        schedule = Schedule(Plan(steps=5))
        for each in durations_s:
            schedule.step_ended(each)
        return schedule.steps_of_recording

    assert steps([0.1] * 24) == 5
    assert steps([*[0.1] * 7, 0.9] * 3) == 8  # 0.9 of 1.6 s
    assert steps([*[0.1] * 7, 0.31] * 3) == 8
    assert steps([*[0.1] * 10, 0.31] * 3) == 5  # 0.31 of 1.31 s
    assert steps([*[0.1] * 2, 0.9] * 8) == 5  # the plan has that many
    assert steps([*[0.1] * 40, 9.0] * 3) == 5  # too many
    chance = [0.1] * 24
    chance[7] = chance[11] = chance[20] = 0.9
    assert steps(chance) == 5
    chance[15] = 9.0
    assert steps(chance) == 5


def test_steps_that_never_settle_are_recorded_in_the_end() -> None:
    assert list(starts(Schedule(Plan(slower_than=None)), [0.1, 0.1, 9.0] * 100)) == [200]


def test_a_slow_step_starts_a_recording_after_a_rest() -> None:
    durations = [0.1] * 400
    # The first recording begins after step 20. A fifth of 1000 steps later, slow steps count.
    durations[149] = durations[299] = 0.31
    found = starts(Schedule(Plan(every=1_000, slower_than=3.0)), durations)
    assert found == {20: PERIODIC, 300: Start("slow step", is_rich=False)}


def test_a_recording_of_many_short_steps_is_followed_by_many_more() -> None:
    schedule = Schedule(Plan(every=1_000, first=20))
    assert list(starts(schedule, [0.1] * 20)) == [20]
    for _ in range(100):
        schedule.recorded_step_ended()
    # Of 2,000 steps, 100 were recorded.
    assert list(starts(schedule, [*[0.1] * 1_000, 0.4, *[0.1] * 1_000])) == [1_900]


def test_a_step_just_below_the_limit_and_one_with_an_evaluation_are_usual() -> None:
    durations: list[float | None] = [0.1] * 400
    durations[299], durations[349] = 0.299, None
    assert list(starts(Schedule(Plan(every=1_000)), durations)) == [20]


def test_if_all_ranks_record_only_the_number_of_the_step_decides() -> None:
    one, other = ([scale * (1 + at % 7) for at in range(900)] for scale in (0.1, 3.0))
    other[500] = 1e3
    plan = Plan(every=300, is_fixed=True)
    assert starts(Schedule(plan), [*one]) == starts(Schedule(plan), [*other])
    assert list(starts(Schedule(plan), [*one])) == [20, 320, 620]


@pytest.mark.parametrize("settings", [{"every": 11}, {"steps": 0}, {"slower_than": 1.0}])
def test_plans_that_make_no_sense_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Plan(**settings)  # type: ignore[arg-type]


# --- what stays -------------------------------------------------------------------------------


def recording(folder: Path, step: int, mean_s: float) -> StoredRecording:
    path = folder / f"step_{step:08}" / "plugins" / "host.pb"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x")
    return StoredRecording(step, "periodic", False, mean_s, (path,))


def test_the_last_and_the_slowest_stay(tmp_path: Path) -> None:
    recordings = Recordings(keep_last=2, keep_slowest=1)
    for step, mean_s in enumerate((0.1, 0.9, 0.2, 0.3, 0.1)):
        recordings.add(recording(tmp_path, step, mean_s))
    assert [each.first_step for each in recordings.kept] == [1, 3, 4]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "step_00000001",
        "step_00000003",
        "step_00000004",
    ]


def test_what_followed_a_slow_step_stays_only_if_slow_steps_matter(tmp_path: Path) -> None:
    recordings = Recordings(keep_last=2, keep_slowest=1)
    recordings.add(recording(tmp_path, 0, 0.2))
    recordings.add(replace(recording(tmp_path, 1, 0.9), reason="slow step"))
    for step in (2, 3):
        recordings.add(recording(tmp_path, step, 0.1))
    assert [each.first_step for each in recordings.kept] == [1, 2, 3]
    recordings.add(recording(tmp_path, 4, 0.1), slow_matters=False)
    assert [each.first_step for each in recordings.kept] == [2, 3, 4]


@pytest.mark.parametrize(("every", "matters"), [(100, True), (200, False)])
def test_slow_steps_matter_from_a_share_of_the_time_on(every: int, matters: bool) -> None:
    schedule = Schedule(Plan())
    for step in range(2_000):
        # One of eight times as long takes 8 of 107, or of 207, parts of the time.
        schedule.step_ended(0.8 if step % every == every - 1 else 0.1)
    assert schedule.slow_matters == matters


def test_only_own_files_are_deleted(tmp_path: Path) -> None:
    recordings = Recordings(keep_last=1, keep_slowest=0)
    recordings.add(recording(tmp_path, 1, 0.1))
    (tmp_path / "step_00000001" / "rank1.json").write_bytes(b"another rank's")
    recordings.add(recording(tmp_path, 2, 0.1))
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(path.name for path in left) == ["host.pb", "rank1.json"]


def test_what_is_being_read_stays(tmp_path: Path) -> None:
    recordings = Recordings(keep_last=1, keep_slowest=0)
    recordings.add(recording(tmp_path, 1, 0.1))
    recordings.add(recording(tmp_path, 2, 0.1), in_use=tmp_path / "step_00000001")
    assert [each.first_step for each in recordings.kept] == [1, 2]
    recordings.add(recording(tmp_path, 3, 0.1))
    assert [each.first_step for each in recordings.kept] == [3]


# --- the profiler -----------------------------------------------------------------------------


class Clock:
    """Advances by what the test says."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Recorder:
    """Writes an empty file."""

    file_prefix, warm_up = "mine.", 1

    def __init__(self, clock: Clock, fails: bool = False) -> None:
        self.clock, self.fails = clock, fails
        self.started: list[int] = []
        self.left = 0

    def start(self, directory: Path, first_step: int, steps: int, *, is_rich: bool) -> None:
        if self.fails:
            raise RuntimeError("another profiler is running")
        self.started.append(first_step)
        self.directory, self.left = directory, steps
        self.clock.now_s += 0.5

    def step(self) -> bool:
        self.left -= 1
        return self.left == 0

    def stop(self) -> None:
        self.directory.mkdir(parents=True)
        (self.directory / "mine.pt.trace.json").write_bytes(b"{}")
        (self.directory / "other.pt.trace.json").write_bytes(b"{}")
        self.clock.now_s += 0.25


def run(profiler: ContinuousProfiler, clock: Clock, steps: int, step_s: float = 0.1) -> None:
    for _ in range(steps):
        clock.now_s += step_s
        profiler.step()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_steps_are_recorded_and_the_cost_is_counted(tmp_path: Path, clock: Clock) -> None:
    recorder = Recorder(clock)
    plan = Plan(every=50, steps=5, first=20)
    profiler = ContinuousProfiler(tmp_path, recorder, plan, clock=clock)
    run(profiler, clock, 80)
    profiler.close()
    assert recorder.started == [20, 70]
    assert [each.files for each in profiler.recordings] == [
        tuple(tmp_path / f"step_{step:08}" / name for name in ("mine.pt.trace.json", FACTS))
        for step in (20, 70)
    ]
    facts = decode_facts((tmp_path / "step_00000070" / FACTS).read_bytes())
    expected = Recording("continuous", is_rich=False, reason="periodic", first_step=70)
    assert replace(facts.recording, step_ns=None) == expected
    assert facts.recording.step_ns == pytest.approx(0.1e9)
    assert facts.machine.cores
    overhead = profiler.overhead
    # Two recordings of five steps of 0.1 s, with 0.5 s to start and 0.25 s to write.
    assert overhead.recording_s == pytest.approx(2 * (5 * 0.1 + 0.5 + 0.25))
    # The others but the first, whose beginning is unknown.
    assert overhead.between_s == pytest.approx((80 - 10 - 1) * 0.1)
    assert overhead.share_between == 0.0  # this clock stands still inside step()


def test_a_recording_that_is_going_on_is_written_at_the_end(tmp_path: Path, clock: Clock) -> None:
    profiler = ContinuousProfiler(tmp_path, Recorder(clock), Plan(first=20), clock=clock)
    run(profiler, clock, 22)
    profiler.close()
    assert [each.first_step for each in profiler.recordings] == [20]


@pytest.mark.parametrize(("steps", "kept"), [(70, [20]), (71, [20]), (72, [20, 70])])
def test_a_recording_that_only_warmed_up_is_none(
    tmp_path: Path, clock: Clock, steps: int, kept: list[int]
) -> None:
    plan = Plan(every=50, steps=5, first=20)
    profiler = ContinuousProfiler(tmp_path, Recorder(clock), plan, clock=clock)
    run(profiler, clock, steps)
    profiler.close()
    assert [each.first_step for each in profiler.recordings] == kept
    # The file of another process stays.
    mine = {path.parent.name for path in tmp_path.rglob("mine.*")}
    assert mine == {f"step_{step:08}" for step in kept}
    assert (tmp_path / "step_00000070" / "other.pt.trace.json").is_file()


def test_a_failing_profiler_never_ends_the_training(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("tb_perfadvisor.continuous").propagate = True
    profiler = ContinuousProfiler(tmp_path, Recorder(clock, fails=True), Plan(), clock=clock)
    run(profiler, clock, 100)
    assert "another profiler is running. The training goes on." in caplog.text
    # It failed in the 20th step, and was not asked again.
    reason = "RuntimeError: another profiler is running."
    assert profiler.summary() == f"no recording in 20 steps: {reason}"


def test_the_environment_turns_it_off(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, "off")
    recorder = Recorder(clock)
    run(ContinuousProfiler(tmp_path, recorder, Plan(), clock=clock), clock, 200)
    assert recorder.started == []


def test_other_ranks_do_not_record(tmp_path: Path, clock: Clock) -> None:
    recorder = Recorder(clock)
    profiler = ContinuousProfiler(tmp_path, recorder, Plan(), is_active=False, clock=clock)
    run(profiler, clock, 200)
    assert recorder.started == []
    assert profiler.summary() == "this process is not recorded: another rank is."


def test_between_recordings_a_step_costs_microseconds(tmp_path: Path) -> None:
    recorder = Recorder(Clock())
    profiler = ContinuousProfiler(tmp_path, recorder, Plan(first=10**9))
    profiler.step()
    calls: Counter[str] = Counter()
    sys.setprofile(lambda frame, event, argument: calls.update([event]))
    try:
        for _ in range(1000):
            profiler.step()
    finally:
        sys.setprofile(None)
    # A call takes about 0.1 us, and 1 % of a step of 10 ms is 100 us.
    assert calls["call"] + calls["c_call"] < 30 * 1000


# --- how `run` records --------------------------------------------------------------------------

RUN = Plan(every=100, first=20, early=3, pairs=True, slower_than=None)


def test_a_run_is_recorded_early_then_light_and_rich() -> None:
    schedule = Schedule(RUN)
    found = starts(schedule, [0.1] * 260)
    assert found == {
        3: Start("early", is_rich=False),
        20: PERIODIC,
        29: Start("periodic", is_rich=True),  # 20 and five recorded steps and four to rest
        120: PERIODIC,
        220: PERIODIC,
    }


def test_long_steps_are_recorded_sooner() -> None:
    # The first one is not timed; of short ones, the third would be the last before.
    assert starts(Schedule(RUN), [None, 4.0, 4.0]) == {2: Start("early", is_rich=False)}


def test_an_early_recording_stays_until_there_is_another(tmp_path: Path) -> None:
    recordings = Recordings(keep_last=2, keep_slowest=1)
    early = replace(recording(tmp_path, 3, 9.0), reason="early")
    recordings.add(early)
    assert recordings.kept == [early]
    recordings.add(recording(tmp_path, 20, 0.1))
    assert [each.first_step for each in recordings.kept] == [20]
    assert [path.name for path in tmp_path.iterdir()] == ["step_00000020"]


def test_recordings_stay_within_their_disk_but_for_the_newest_and_the_rich(
    tmp_path: Path,
) -> None:
    recordings = Recordings(keep_last=4, keep_slowest=0, most_bytes=250)
    for step in range(5):
        added = recording(tmp_path, step, 0.1)
        added.files[0].write_bytes(b"x" * 100)
        recordings.add(replace(added, is_rich=step == 1))
    # The newest and the rich one take 200 bytes; a third would take 300.
    assert [each.first_step for each in recordings.kept] == [1, 4]


def test_recordings_cost_no_more_than_their_share_after_a_minute(
    tmp_path: Path, clock: Clock
) -> None:
    recorder = Recorder(clock)
    plan = replace(RUN, most_share=0.02, early=None, pairs=False, rich_every=0)
    profiler = ContinuousProfiler(tmp_path, recorder, plan, clock=clock)
    run(profiler, clock, 6_000)  # steps of 0.1 s
    overhead = profiler.overhead
    # Each recording costs 1.25 s: 62.5 s of the 540 s after the first minute would be 50 of them.
    begun_later = [step for step in recorder.started if step > 600]
    assert 1.25 * len(begun_later) <= 0.02 * (clock.now_s - 60)
    assert len(begun_later) >= 6  # of 8 that 2 % of the time allow
    assert overhead.steps == 6_000


def after(profiler: ContinuousProfiler, clock: Clock, step: str = "") -> ContinuousProfiler:
    other = ContinuousProfiler(profiler._logdir, Recorder(clock), RUN, clock=clock)
    other.follow(profiler, step)
    return other


def recorded(folder: Path) -> list[str]:
    return sorted({path.parent.name for path in folder.rglob("mine.*") if path.is_file()})


def test_what_was_recorded_of_a_worse_source_is_deleted(tmp_path: Path, clock: Clock) -> None:
    profiler = ContinuousProfiler(tmp_path, Recorder(clock), RUN, clock=clock)
    run(profiler, clock, 22)  # the early recording, and in the middle of the next
    other = after(profiler, clock)
    assert recorded(tmp_path) == []
    # The steps of the next one are numbered on.
    run(other, clock, 12)
    assert [each.first_step for each in other.recordings] == [25]


@pytest.mark.parametrize(
    ("steps", "later", "kept"),
    [
        # A light and a rich one of a loop that ends in the middle of a third.
        (122, 1, ["step_00000020", "step_00000029_rich"]),
        # The next loop is recorded as well, and three times as long is not four times.
        (122, 300, ["step_00000020", "step_00000029_rich", "step_00000142"]),
        (122, 600, ["step_00000142"]),
        # Half a second is no loop that is worth a recording.
        (10, 1, []),
    ],
)
def test_a_loop_of_its_own_stays_recorded(
    steps: int, later: int, kept: list[str], tmp_path: Path, clock: Clock
) -> None:
    profiler = ContinuousProfiler(tmp_path, Recorder(clock), RUN, clock=clock)
    run(profiler, clock, steps)
    other = after(profiler, clock, "a round")
    run(other, clock, later)
    other.close()
    own = [each.first_step for each in other.recordings]
    assert [name for name in recorded(tmp_path) if int(name[5:13]) not in own[1:]] == kept
    assert [each.step for each in other.earlier] == ["a round"] * (len(kept) > 1)


def test_long_steps_are_recorded_soon_and_one_by_one() -> None:
    # The first one is not timed, the second takes 4 s; of short ones it is the third.
    assert starts(Schedule(RUN), [None, 4.0, 4.0]) == {2: Start("early", is_rich=False)}
    found = Schedule(RUN)
    found.has_run(2, 10.0)  # steps of 5 s, before they were seen to repeat
    assert found.step_ended(None) == (start := Start("early", is_rich=False))
    assert found.steps_of(start) == 1
    assert found.steps_of(PERIODIC) == RUN.steps
