"""Recordings of one run as a time line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.support.command import DEMO, HEALTHY, SLOW, error, run


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
    # The same as `compare` says: 56.3 ms predicted, 54.0 ms achieved.
    stall = next(each for each in after["findings"] if each["rule_id"] == "input-stall")
    assert (stall["status"], stall["is_in_range"]) == ("fixed", True)
    assert stall["predicted"]["expected_ns"] == 56_301_366
    (back,) = json.loads(run("history", HEALTHY, SLOW, "-f", "json").stdout)["histories"]
    assert back["recordings"][1]["verdict"] == "slower"
    assert {each["status"] for each in back["recordings"][1]["findings"]} == {"new"}


def test_sessions_of_one_run_are_sorted_by_time(tmp_path: Path) -> None:
    path = recorded_twice(tmp_path)
    files = sorted(tmp_path.rglob("*"))
    (history,) = json.loads(run("history", path, "-f", "json").stdout)["histories"]
    assert [each["verdict"] for each in history["recordings"]] == [None, "faster"]
    assert sorted(tmp_path.rglob("*")) == files, "nothing is written beside the profiles"


def test_text_and_markdown_show_what_came_true() -> None:
    text = run("history", SLOW, HEALTHY).stdout
    assert "pytorch_input_fixed  70.4 ms  −45.2 ms (39.1 %)  faster   none" in text
    assert "54.0 ms (96 %)" in text
    markdown = run("history", SLOW, HEALTHY, "-f", "markdown").stdout
    assert "| input-stall | 56.3 ms | 50.6–62.5 ms | 54.0 ms (96 %) | fixed |" in markdown


def test_a_single_recording_is_no_history() -> None:
    assert "contains no run that was recorded twice" in error("history", SLOW)
    assert "several paths must hold one recording each" in error("history", SLOW, DEMO)
