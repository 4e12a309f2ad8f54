"""`perfadvisor analyze`: its output, and the options that select captures and rules."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from tb_perfadvisor.rules.registry import all_rules
from tb_perfadvisor.testing import draw
from tests.support.command import HEALTHY, ROOT, SLOW, error, run
from tests.support.writers import write_kineto


def test_text_is_the_default_format() -> None:
    done = run("analyze", SLOW)
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert lines[1].startswith(
        "Waiting for input takes 48.7 % of each step. Load batches in worker"
    )
    assert "1. Feed the step without making it wait  input-stall" in lines
    # No progress and no colors in a pipe.
    assert done.stderr == ""
    assert "\x1b" not in done.stdout


def test_json_on_stdout_and_nothing_else() -> None:
    done = run("analyze", SLOW, "--format", "json")
    document = json.loads(done.stdout)
    assert document["schema_version"] == 1
    assert document["generator"]["name"] == "tb_perfadvisor"
    (report,) = document["reports"]
    assert [finding["rule_id"] for finding in report["findings"]] == [
        "input-stall",
        "loader-in-main-process",
    ]
    assert report["views"] is None
    assert str(ROOT) not in done.stdout, "no absolute path leaves the machine"
    assert done.stderr == ""


def test_a_file_that_is_no_profile_is_named() -> None:
    message = error("analyze", ROOT / "README.md")
    assert message.startswith("error: README.md: is not a readable profile: this is text")


def test_a_written_file_is_named_with_its_size(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    done = run("analyze", SLOW, "-f", "json", "-o", path)
    written = " ".join(done.stderr.split())
    assert re.fullmatch(rf"note: wrote {re.escape(str(path))} \([\d.]+ KiB\)\.", written)
    assert done.stdout == ""


def test_markdown() -> None:
    assert run("analyze", SLOW, "--format", "markdown").stdout.startswith("# ")


def test_html_and_sarif() -> None:
    page = run("analyze", SLOW, "--format", "html").stdout
    assert page.startswith("<!doctype html>")
    assert '"captures/0/views/steps"' in page, "a page shows the views, like the tab"
    log = json.loads(run("analyze", SLOW, "--format", "sarif").stdout)
    assert [result["ruleId"] for result in log["runs"][0]["results"]] == [
        "input-stall",
        "loader-in-main-process",
    ]


def test_views_on_demand() -> None:
    done = run("analyze", SLOW, "--format", "json", "--views")
    (report,) = json.loads(done.stdout)["reports"]
    assert len(report["views"]["steps"]["duration_ns"]) == 5


def test_output_goes_to_a_file(tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    done = run("analyze", SLOW, "--format", "json", "--output", target)
    assert done.stdout == ""
    assert len(json.loads(target.read_text(encoding="utf-8"))["reports"]) == 1
    assert "cannot be written: No such file" in error(
        "analyze", SLOW, "--output", tmp_path / "none" / "report.txt"
    )


def test_run_selects_captures() -> None:
    done = run("analyze", SLOW.parent, "--format", "json", "--run", "^jax_")
    runs = [report["run"] for report in json.loads(done.stdout)["reports"]]
    assert sorted(runs) == ["jax_healthy", "jax_recompiling"]
    assert "no run matches 'nothing'. Runs: jax_healthy" in error(
        "analyze", SLOW.parent, "--run", "nothing"
    )
    assert "'(' is not a valid regular expression" in error("analyze", SLOW, "--run", "(")


def test_several_captures_are_listed() -> None:
    done = run("analyze", SLOW.parent, "--run", "^pytorch_input")
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert lines[0] == "Run, and what to change first Step Saves Severity"
    # 36.6 of 116 ms; finding 1a is the one to begin with.
    place = lines.index("pytorch_input_slow CPU 116 ms 31.7 % medium")
    change = " ".join(lines[place + 1 : place + 3])
    assert change == "Load batches in worker processes: each takes 56.5 ms now"
    full, gained = done.stderr.splitlines()
    assert "--full" in full
    assert gained.endswith("pytorch_input_slow " + str(SLOW.parent / "pytorch_input_fixed"))
    whole = run("analyze", SLOW.parent, "--run", "^pytorch_input", "--full")
    assert "1. Feed the step without making it wait" in whole.stdout
    assert whole.stderr == ""


def outcomes(*arguments: object) -> list[str]:
    done = run("analyze", SLOW, "--format", "json", *arguments)
    (report,) = json.loads(done.stdout)["reports"]
    return [outcome["rule_id"] for outcome in report["outcomes"]]


def test_select_and_ignore() -> None:
    assert outcomes("--select", "step-gap", "--select", "input-stall") == [
        "input-stall",
        "step-gap",
    ]
    remaining = outcomes("--ignore", "input-stall")
    assert remaining == [rule.id for rule in all_rules() if rule.id != "input-stall"]


def test_config_sets_limits_and_options_add_to_it(tmp_path: Path) -> None:
    config = tmp_path / "advice.toml"
    config.write_text(
        'ignore = ["step-gap"]\n[limits.input-stall]\nminimum_share = 0.6\n', encoding="utf-8"
    )
    # The stall takes 49 % of the step: below the limit of 60 %.
    ignored = ["--ignore", "recompilation", "--ignore", "loader-in-main-process"]
    done = run("analyze", SLOW, "--config", config, "--format", "json", *ignored)
    (report,) = json.loads(done.stdout)["reports"]
    assert report["findings"] == []
    ran = {outcome["rule_id"] for outcome in report["outcomes"]}
    assert not ran & {"step-gap", "recompilation"}
    assert "no rule 'typo'" in error("analyze", SLOW, "--select", "typo")
    config.write_text("parameters = 'many'", encoding="utf-8")
    assert "advice.toml: has a wrong value" in error("analyze", SLOW, "--config", config)


def test_the_device_can_be_named(tmp_path: Path) -> None:
    path = tmp_path / "nameless.pt.trace.json"
    path.write_bytes(write_kineto(draw("cell 1ms\nmain |oo..|\ngpu 7 |.KK.|")))
    nameless = ["analyze", path, "--no-cache", "--format", "json"]

    def device_and_notes(*options: str) -> tuple[dict[str, object], set[str]]:
        (report,) = json.loads(run(*nameless, *options).stdout)["reports"]
        return report["workers"][0]["device"], {note["id"] for note in report["notes"]}

    device, notes = device_and_notes()
    # The kernel is an ampere_sgemm.
    assert device["name"] == "NVIDIA GPU (Ampere or newer)"
    assert "unknown-device" in notes
    device, notes = device_and_notes("--device", "mi300x")
    assert (device["name"], device["identified_by"]) == ("MI300X", "your setting")
    assert "unknown-device" not in notes
    config = tmp_path / "advice.toml"
    config.write_text('device = "RTX 5090"', encoding="utf-8")
    assert device_and_notes("--config", str(config))[0]["name"] == "RTX 5090"
    both = ("--config", str(config), "--device", "MI300X")
    assert device_and_notes(*both)[0]["name"] == "MI300X"
    message = error(*nameless, "--device", "H100 SMX5")
    assert "no device called 'H100 SMX5'" in message
    assert "H100 SXM5 80GB" in message


@pytest.mark.parametrize(
    ("profile", "level", "status"),
    [(SLOW, "medium", 1), (SLOW, "low", 1), (HEALTHY, "low", 0), (HEALTHY, "high", 0)],
)
def test_fail_on_a_finding(profile: Path, level: str, status: int) -> None:
    done = run("analyze", profile, "--fail-on", level, status=status)
    assert done.stdout, "the report is printed all the same"
    higher = "" if level == "high" else " or higher"
    assert done.stderr == (f"note: 2 findings of {level}{higher} severity.\n" if status else "")


def test_fail_on_a_higher_severity_than_was_found() -> None:
    # One of two ranks is late, so only 1 % of the step can be hidden: severity low.
    profile = ROOT / "demo_logs" / "pytorch_ddp_straggler"
    command = ["analyze", profile, "--select", "exposed-communication", "--fail-on"]
    run(*command, "low", status=1)
    run(*command, "medium")


def test_a_path_without_profiles(tmp_path: Path) -> None:
    assert "nowhere" in error("analyze", tmp_path / "nowhere")
    (tmp_path / "notes.txt").write_text("hello", encoding="utf-8")
    line = error("analyze", tmp_path)
    assert "contains no profile (1 file scanned)" in line
    assert "*.pt.trace.json" in line


def test_a_file_that_is_not_a_profile(tmp_path: Path) -> None:
    bad = tmp_path / "worker.pt.trace.json"
    bad.write_bytes(b"\x00\x01 this is no JSON")
    assert bad.name in error("analyze", tmp_path)
    error("analyze", bad)


def test_a_bad_file_among_good_ones_is_a_note(tmp_path: Path) -> None:
    shutil.copytree(SLOW, tmp_path / "good")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "worker.pt.trace.json").write_bytes(b"\x00 this is no JSON")
    done = run("analyze", tmp_path, "--format", "json")
    document = json.loads(done.stdout)
    assert [report["run"] for report in document["reports"]] == ["good"]
    (rejected,) = document["rejected"]
    assert rejected["path"].startswith("bad")
    assert rejected["reason"]
    assert "Not read (1):" in run("analyze", tmp_path).stdout


def test_an_incomplete_scan_is_noted(tmp_path: Path) -> None:
    # One of 2001 data files is not opened.
    (tmp_path / "data").mkdir()
    for i in range(2001):
        (tmp_path / "data" / f"{i}.json").write_bytes(b"{}")
    gap = (
        "of 2,001 files that may be profiles, but whose names do not say so, 2,000 were looked into"
    )
    assert f"contains no profile (2,001 files scanned; {gap})." in error("analyze", tmp_path)
    shutil.copytree(SLOW, tmp_path / "run")
    done = run("analyze", tmp_path, "--format", "json")
    assert [report["run"] for report in json.loads(done.stdout)["reports"]] == ["run"]
    assert done.stderr.startswith(f"note: {tmp_path} was not fully scanned: of 2,00")
    assert done.stderr.endswith("Name a directory closer to the profiles to see all of them.\n")


def findings(path: Path, *options: str) -> list[dict[str, object]]:
    (report,) = json.loads(run("analyze", path, "--format", "json", *options).stdout)["reports"]
    return [{key: found[key] for key in ("rule_id", "saving")} for found in report["findings"]]


def test_files_are_read_again_when_something_has_changed(tmp_path: Path) -> None:
    (source,) = SLOW.rglob("*.pt.trace.json.gz")
    path = tmp_path / source.name
    shutil.copy(source, path)
    first = findings(path)
    assert [found["rule_id"] for found in first][:1] == ["input-stall"]
    # Same size and time, but broken in the middle: only a new read would notice.
    stamp = path.stat()
    half = stamp.st_size // 2
    path.write_bytes(source.read_bytes()[:half] + bytes(stamp.st_size - half))
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert findings(path) == first
    assert "truncated-file" in run("analyze", path, "--no-cache", "--format", "json").stdout
    os.utime(path)
    assert "truncated-file" in run("analyze", path, "--format", "json").stdout
