"""The ledger, and what reports make of it."""

from __future__ import annotations

import json
import os
import runpy
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tb_perfadvisor import analyze
from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.proof.attach import with_proofs
from tb_perfadvisor.proof.ledger import (
    Machine,
    Proof,
    append,
    digest_of,
    is_within,
    known_proofs,
    ledger_file,
    markdown_table,
    read,
    summary,
)
from tb_perfadvisor.proof.results import Effect, Prediction, effect_text
from tb_perfadvisor.report.formats.brief import make_brief
from tb_perfadvisor.report.formats.render import document
from tb_perfadvisor.report.formats.text import render_text
from tb_perfadvisor.report.report import Report
from tests.support.command import run

DEMO = Path(__file__).parents[2] / "demo_logs"
MACHINE = Machine("Linux x86_64", "A processor", 8, 32.0, "")


def proof(**given: Any) -> Proof:
    values: dict[str, Any] = {
        "tried_unix_s": 1_700_000_000,
        "recording": "",
        "change": "fused-optimizer",
        "verdict": "faster",
        "measured": Effect(0.16, 0.18, 0.20),
        "predicted": Prediction(0.12, 0.15, 0.21),
        "results": "equal",
        "pairs": 6,
        "step_ns": 12_100_000,
        "machine": MACHINE,
    }
    return Proof(**{**values, **given})


@pytest.fixture(scope="module")
def report() -> Report:
    return analyze(DEMO / "pytorch_input_slow")


def change_of(report: Report, place: int = 0) -> str:
    return next(remedy.change for remedy in report.findings[place].remedies if remedy.change)


def test_lines_are_added_and_read_again(tmp_path: Path) -> None:
    file = tmp_path / "data" / "proofs.jsonl"
    first, second = proof(), proof(change="patch", predicted=None)
    append([first], file)
    append([second], file)
    assert read(file) == [first, second]
    assert file.stat().st_mode & 0o077 == 0
    with file.open("ab") as damaged:
        damaged.write(b'{"format": 1, "tried_uni')
    assert read(file) == [first, second]


def test_a_missing_or_unreadable_ledger_is_no_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERFADVISOR_DATA_DIR", str(tmp_path))
    assert known_proofs() == []
    ledger_file().mkdir()
    assert known_proofs() == []


def test_ranges_meet_or_not() -> None:
    assert is_within(proof()) is True
    assert is_within(proof(measured=Effect(0.01, 0.02, 0.03))) is False
    assert is_within(proof(predicted=None)) is None
    assert is_within(proof(measured=Effect(-9, 0, 0.9), verdict="undecided")) is None


def test_words() -> None:
    assert effect_text(Effect(0.16, 0.18, 0.20)) == "18 % faster (16–20 %, 95 %)"
    assert effect_text(Effect(-0.30, -0.25, -0.20)) == "25 % slower (20–30 %, 95 %)"
    assert effect_text(Effect(-0.004, 0.002, 0.008)) == "0.2 % faster (-0.4 to 0.8 %, 95 %)"


def test_the_table() -> None:
    assert [
        *markdown_table([proof(), proof(measured=None, verdict="refused", reason="samples")])
    ] == [
        "| change | step | predicted | measured (95 %) | verdict | pairs |",
        "|---|---|---|---|---|---|",
        "| fused-optimizer | 12.1 ms | 12–21 % | 18 % (16–20 %) | faster | 6 |",
        "| fused-optimizer | 12.1 ms | 12–21 % | none | refused: samples | 6 |",
        "",
        "The predicted and the measured range meet in 1 of 1 decided trials that have both.",
    ]
    assert summary([]) == "No change with a prediction was measured yet."


def test_the_command_shows_and_exports(tmp_path: Path) -> None:
    file, out = tmp_path / "given.jsonl", tmp_path / "out.jsonl"
    append([proof()], file)
    shown = run("ledger", "--file", str(file))
    assert "18 % (16–20 %)" in shown.stdout
    exported = run("ledger", "--file", str(file), "--format", "json").stdout
    assert json.loads(exported)["change"] == "fused-optimizer"
    out.write_text(exported, encoding="utf-8")
    assert read(out) == [proof()]


def test_the_command_shows_lines_of_any_time(tmp_path: Path) -> None:
    file = tmp_path / "given.jsonl"
    append([proof(tried_unix_s=time) for time in (-1, 0, 10**12, 2**62)], file)
    shown = run("ledger", "--file", str(file)).stdout
    assert [day for day in ("1969-12-31", "1970-01-01", "unknown") if day in shown] == [
        *("1969-12-31", "1970-01-01", "unknown"),
    ]


def test_a_line_after_one_that_a_full_disk_cut_off_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "proofs.jsonl"
    append([proof()], file)
    with monkeypatch.context() as disk:
        write = os.write
        disk.setattr(os, "write", lambda place, content: write(place, content[:20]))
        with pytest.raises(UsageError, match="No space left"):
            append([proof(change="lost")], file)
    append([proof(change="patch")], file)
    assert [each.change for each in read(file)] == ["fused-optimizer", "patch"]


def test_a_recording_is_known_wherever_its_files_lie(report: Report) -> None:
    moved = replace(report, id="other", run="elsewhere", session="")
    assert digest_of(moved) == digest_of(report)
    other = analyze(DEMO / "pytorch_input_fixed")
    assert digest_of(other) != digest_of(report)


def test_a_proof_of_this_recording_is_shown(report: Report) -> None:
    of_this = proof(recording=digest_of(report), change=change_of(report))
    shown = with_proofs(report, [of_this])
    assert shown.findings[0].proof is not None
    assert shown.findings[0].proof.text == "proved: 18 % faster (16–20 %, 95 %)"
    # The one to begin with stays: it explains the general one, and has the same change.
    assert shown.first == report.first
    assert "proved: 18 % faster" in render_text(document([shown], []))
    assert "proved: 18 % faster" in (make_brief(shown).findings[0].proof or "")


def test_other_recordings_and_changes_prove_nothing(report: Report) -> None:
    others = [
        proof(recording="another", change=change_of(report)),
        proof(recording=digest_of(report), change="another"),
        proof(recording=digest_of(report), change=change_of(report), verdict="undecided"),
        proof(recording=digest_of(report), change=change_of(report), verdict="failed"),
    ]
    assert with_proofs(report, others) == report


def test_the_last_verdict_counts(report: Report) -> None:
    of_this = proof(recording=digest_of(report), change=change_of(report))
    # Lines are only added to a ledger. The clock of the last one was wrong.
    last = replace(of_this, tried_unix_s=0, verdict="no difference")
    shown = with_proofs(report, [of_this, last])
    assert shown.findings[0].proof is None or not shown.findings[0].proof.helped


def test_what_was_tried_in_vain_comes_last(report: Report) -> None:
    vain = [
        proof(
            recording=digest_of(report),
            change=remedy.change,
            verdict="no difference",
            measured=Effect(-0.004, 0.002, 0.008),
        )
        for finding in report.findings
        for remedy in finding.remedies
        if remedy.change
    ]
    # Another finding, of which nothing was tried.
    untried = replace(
        report.findings[0], rule_id="untried", refines=None, remedies=[], title="Untried"
    )
    more = replace(report, findings=[*report.findings, untried])
    shown = with_proofs(more, vain)
    assert [each.rule_id for each in shown.findings] == [
        "untried",
        *(each.rule_id for each in report.findings),
    ]
    assert shown.first is not None
    assert shown.first.index == 0
    assert shown.findings[1].proof is not None
    assert shown.findings[1].proof.text.startswith("did not help here")
    assert report.combined_saving is not None
    assert shown.combined_saving is not None
    # All of it was of the first finding, which claims it.
    assert shown.combined_saving.expected_ns == 0
    # Timelines and excerpts still find each by the place that it had.
    assert [more.findings[each.analyzed_place or 0].rule_id for each in shown.findings] == [
        each.rule_id for each in shown.findings
    ]


def test_a_larger_proof_moves_up(report: Report) -> None:
    first = report.findings[0]
    assert first.saving is not None
    share = first.saving.share_expected
    second = replace(
        first,
        rule_id="second",
        refines=None,
        title="Second",
        saving=replace(first.saving, share_expected=share / 2),
        remedies=[replace(first.remedies[0], change="second-change")],
    )
    more = replace(report, findings=[*report.findings, second])
    measured = Effect(share, share + 0.1, share + 0.2)
    shown = with_proofs(
        more, [proof(recording=digest_of(more), change="second-change", measured=measured)]
    )
    assert shown.findings[0].rule_id == "second"
    assert shown.first is not None
    assert shown.first.index == 0


def test_a_report_with_proofs_is_as_the_schema_says(report: Report) -> None:
    shown = with_proofs(report, [proof(recording=digest_of(report), change=change_of(report))])
    again = msgspec.json.decode(msgspec.json.encode(shown), type=Report)
    assert again == shown


def test_the_section_on_proofs_is_current() -> None:
    made = runpy.run_path(str(DEMO.parent / "scripts" / "proofs.py"))
    written = (DEMO.parent / "docs" / "accuracy.md").read_text(encoding="utf-8")
    assert made["page"]() == written, f"stale: run `{made['COMMAND']}`"
