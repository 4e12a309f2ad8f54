"""Notes in a settings file: shown with findings, and findings that stay fail no gate."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.command import SLOW, run


def settings(directory: Path, *findings: str) -> Path:
    path = directory / "perfadvisor.toml"
    tables = [
        f'[[notes]]\nfinding = "{finding}"\nwont_fix = true\ntext = "until May"\n'
        for finding in findings
    ]
    path.write_text("\n".join(tables), encoding="utf-8")
    return path


def test_findings_that_stay_fail_no_gate(tmp_path: Path) -> None:
    select = ("--select", "input-stall")
    run("analyze", SLOW, *select, "--fail-on", "low", status=1)
    path = settings(tmp_path, "input-stall")
    done = run("analyze", SLOW, *select, "--fail-on", "low", "--config", path)
    assert "won't fix: until May" in done.stdout


def test_code_scanning_shows_them_as_suppressed(tmp_path: Path) -> None:
    path = settings(tmp_path, "input-stall")
    done = run("analyze", SLOW, "--format", "sarif", "--config", path)
    results = json.loads(done.stdout)["runs"][0]["results"]
    suppressed = {each["ruleId"]: each.get("suppressions") for each in results}
    assert suppressed["input-stall"] == [
        {"kind": "external", "status": "accepted", "justification": "until May"}
    ]
    assert [rule for rule, found in suppressed.items() if found] == ["input-stall"]


def test_unknown_key_of_a_note_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "perfadvisor.toml"
    path.write_text('[[notes]]\nfinding = "input-stall"\nby = "me"\n', encoding="utf-8")
    done = run("analyze", SLOW, "--config", path, status=2)
    assert "`by`" in done.stderr
