"""Recordings of one run as a time line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tb_perfadvisor.comparison.history import in_order_of_time, make_history
from tb_perfadvisor.comparison.run_facts import OutcomeFacts, RunFacts
from tb_perfadvisor.contract.model import RecordedInfo
from tb_perfadvisor.ingest.captures import Capture, ProfileFile, make_capture
from tb_perfadvisor.ingest.recordings import series_of, split_step
from tests.support.command import DEMO, HEALTHY, SLOW, error, run
from tests.support.comparison_facts import facts, finding


def recorded_twice(root: Path) -> Path:
    """One run with the slow profile and, by the times in the names, later the fixed one."""
    (root / "run").mkdir()
    for source in (HEALTHY, SLOW):
        for file in source.glob("*.gz"):
            shutil.copy(file, root / "run")
    return root / "run"


def test_recordings_in_the_order_given() -> None:
    (history,) = json.loads(run("history", SLOW, HEALTHY, "-f", "json").stdout)["histories"]
    before, after = history["recordings"]
    assert before["verdict"] is None
    assert before["open_findings"] == ["input-stall", "loader-in-main-process"]
    assert after["verdict"] == "faster"
    assert after["open_findings"] == []
    # The same as `compare` says: 36.6 ms predicted (0 to 62.5), 54.0 ms achieved.
    stall = history["findings"][0]
    assert (stall["rule_id"], stall["states"]) == ("input-stall", ["found", "absent"])
    (occurrence,) = stall["occurrences"]
    assert [occurrence[name] for name in ("absent_before", "first", "last", "gone")] == [
        None, 0, 0, 1,
    ]  # fmt: skip
    change = occurrence["change"]
    assert (change["status"], change["is_in_range"]) == ("fixed", True)
    assert change["predicted"]["expected_ns"] == 36_614_767
    # Each recording's causes sum exactly to its step.
    for recording in history["recordings"]:
        parts = sum(part["per_step_ns"] for part in recording["causes"])
        assert parts == recording["run"]["step_time_ns"]


def test_finding_that_comes_back() -> None:
    runs = (SLOW, HEALTHY, SLOW)
    (history,) = json.loads(run("history", *runs, "-f", "json").stdout)["histories"]
    assert [each["verdict"] for each in history["recordings"]] == [None, "faster", "slower"]
    stall = history["findings"][0]
    assert [
        (each["absent_before"], each["first"], each["gone"]) for each in stall["occurrences"]
    ] == [(None, 0, 1), (1, 2, None)]
    assert stall["expected_ns"] == [36_614_767, None, 36_614_767]


def test_sessions_of_one_run_are_sorted_by_time(tmp_path: Path) -> None:
    path = recorded_twice(tmp_path)
    files = sorted(tmp_path.rglob("*"))
    (history,) = json.loads(run("history", path, "-f", "json").stdout)["histories"]
    assert [each["verdict"] for each in history["recordings"]] == [None, "faster"]
    assert sorted(tmp_path.rglob("*")) == files, "nothing is written beside the profiles"


def test_text_and_markdown_show_what_came_true() -> None:
    text = run("history", SLOW, HEALTHY).stdout
    assert "2  pytorch_input_fixed  70.4 ms  −45.2 ms (39.1 %)  faster   0" in text
    assert "54.0 ms (148 %)" in text
    markdown = run("history", SLOW, HEALTHY, "-f", "markdown").stdout
    row = "| input-stall | by 1 | 2 | 36.6 ms | 54.0 ms (148 %) | fixed |"
    assert row in markdown


def test_directories_of_steps_are_one_run(tmp_path: Path) -> None:
    # The fixed profile is the older one by its clock, so the run got slower.
    for name, source in (("step_00000900", SLOW), ("step_00000100", HEALTHY)):
        (tmp_path / "lm" / name).mkdir(parents=True)
        for file in source.glob("*.gz"):
            shutil.copy(file, tmp_path / "lm" / name)
    for path in (tmp_path, tmp_path / "lm"):
        (history,) = json.loads(run("history", path, "-f", "json").stdout)["histories"]
        assert history["name"] == "lm"
        steps = [each["moment"]["step"] for each in history["recordings"]]
        assert steps == [900, 100]


def test_scalars_tell_the_step_and_its_usual_time() -> None:
    (history,) = json.loads(run("history", DEMO / "pytorch_whole_run", "-f", "json").stdout)[
        "histories"
    ]
    moments = [each["moment"] for each in history["recordings"]]
    # Recorded at steps 105, 905, 1,705 and 2,205 (run.json); logged every 50 steps.
    assert [moment["step"] for moment in moments] == [100, 900, 1_700, 2_200]
    # From step 1,500 on, each of 16 samples takes 1.1 ms longer: 17.6 ms.
    fast, slow = moments[1]["usual_step_ns"], moments[2]["usual_step_ns"]
    assert 17e6 < slow - fast < 22e6


def drawn(*, found: bool, checked: bool = True) -> RunFacts:
    """Two steps of 100 ns, 40 of them waiting for input while the finding is there."""
    waiting = 80 if found else 0
    return facts(
        *([100, 100] if found else [60, 60]),
        causes={"compute-32": 120, "input": waiting} if found else {"compute-32": 120},
        findings=[finding("input-stall", 60, 80, 90, {"input": 80})] if found else [],
        outcomes={
            "input-stall": OutcomeFacts(
                status="found" if found else "passed" if checked else "not_applicable",
                reason=None,
            )
        },
    )


def test_unchecked_recordings_prove_nothing() -> None:
    unchecked = drawn(found=False, checked=False)
    recordings = [unchecked, drawn(found=True), unchecked, drawn(found=True), unchecked]
    (stall,) = make_history("run", [*recordings, drawn(found=False)]).findings
    assert stall.states == ["unknown", "found", "unknown", "found", "unknown", "absent"]
    (occurrence,) = stall.occurrences
    assert (occurrence.absent_before, occurrence.first, occurrence.last) == (None, 1, 3)
    # Its end is compared with the last recording that has it: 40 ns of waiting less per step.
    assert occurrence.gone == 5
    assert occurrence.change is not None
    assert (occurrence.change.achieved_ns, occurrence.change.is_in_range) == (40, True)


def test_order_of_time_needs_every_clock() -> None:
    late, early = (
        facts(100, recorded=RecordedInfo(start_unix_ns=at, end_unix_ns=at + 1)) for at in (9, 5)
    )
    assert in_order_of_time([late, early]) == [1, 0]
    assert in_order_of_time([late, facts(100), early]) == [0, 1, 2]


def test_other_formats_of_a_run_are_no_recordings_of_it() -> None:
    def capture(run: str, format: str) -> Capture:
        return make_capture(run, "s", format, [ProfileFile(f"{run}/f", 1, 1)])

    lm, other = capture("lm/step_00000005", "kineto"), capture("lm/iteration_7", "kineto")
    assert series_of(lm) == series_of(other) == ("lm", "kineto")
    assert series_of(capture("lm", "memory")) != series_of(lm)
    assert split_step("steps/lm_2") == ("steps/lm_2", None)


def test_a_single_recording_is_no_history() -> None:
    assert "contains no run that was recorded twice" in error("history", SLOW)
    assert "several paths must hold one recording each" in error("history", SLOW, DEMO)
