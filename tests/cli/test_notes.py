"""Notes in a settings file: shown with findings, and findings that stay fail no gate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tb_perfadvisor.remark import Remark
from tb_perfadvisor.remarks.store import known_remarks, run_digest, write_remark
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


def test_what_stays_is_left_out_of_the_headline(tmp_path: Path) -> None:
    done = run("analyze", SLOW, "--format", "json", "--config", settings(tmp_path, "input-stall"))
    (report,) = json.loads(done.stdout)["reports"]
    assert report["headline"].endswith(". 1 set aside")
    assert report["first"] is None or report["first"]["rule_id"] != "input-stall"


def test_notes_of_the_tab_open_no_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reaches the tab can write notes: the command line reads the settings file alone."""
    monkeypatch.setenv("PERFADVISOR_DATA_DIR", str(tmp_path))
    for root, name in ((SLOW.parent, SLOW.name), (SLOW, ".")):
        note = Remark("input-stall", wont_fix=True, text="by a visitor")
        write_remark(run_digest(str(root), name), note)
    assert len(known_remarks()) == 2
    gate = ("--select", "input-stall", "--fail-on", "low")
    refused = run("analyze", SLOW, *gate, status=1)
    assert "set aside" not in refused.stdout
    assert "by a visitor" not in refused.stdout


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
