"""What `perfadvisor try` says before anything runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.command import HEALTHY, error, run

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs Linux or macOS")


def test_needs_a_program() -> None:
    assert "the program to run is missing" in error("try")
    assert "the program to run is missing" in error("try", "--patch", "mine.diff", "--")


def test_says_what_it_runs_and_asks(tmp_path: Path) -> None:
    note = tmp_path / "ran"
    code = f"open({str(note)!r}, 'w')"
    result = run("try", "--", sys.executable, "-c", code, status=2)
    said = " ".join(result.stderr.split())
    assert "many times, for up to 10 minutes per change" in said
    assert "Absolute paths and networks that the program uses are not contained." in said
    assert "Add --yes." in said
    assert not note.exists()


def test_runs_nothing_if_there_is_nothing_to_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "program").mkdir()
    monkeypatch.chdir(tmp_path / "program")
    note = tmp_path / "ran"
    program = (sys.executable, "-c", f"open({str(note)!r}, 'w')")
    result = run("try", HEALTHY, "--yes", "--", *program, status=2)
    assert "there is no change to try" in result.stderr
    result = run("try", HEALTHY, "--yes", "--change", "magic", "--", *program, status=2)
    assert "there is no change 'magic'" in result.stderr
    assert not note.exists()
