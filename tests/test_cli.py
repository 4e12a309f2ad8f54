"""The command as a user's shell sees it: what it prints where, and the status it ends with."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tb_perfadvisor.cli import app
from tb_perfadvisor.rules.registry import all_rules

ROOT = Path(__file__).resolve().parents[1]
SLOW = ROOT / "demo_logs" / "pytorch_input_slow"
HEALTHY = ROOT / "demo_logs" / "pytorch_input_fixed"


def run(*arguments: object, status: int = 0, width: int = 120) -> subprocess.CompletedProcess[str]:
    """Run the command; whatever happens, no traceback reaches the user."""
    done = subprocess.run(
        [sys.executable, "-m", "tb_perfadvisor", *map(str, arguments)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
        check=False,
        env={**os.environ, "COLUMNS": str(width), "PYTHONIOENCODING": "utf-8"},
    )
    assert "Traceback" not in done.stderr + done.stdout
    assert done.returncode == status, done.stderr
    return done


def error(*arguments: object) -> str:
    """What a refused command says: one line on stderr, nothing on stdout."""
    done = run(*arguments, status=2)
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    return line


def test_text_is_what_comes_without_asking() -> None:
    done = run("analyze", SLOW)
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert lines[1] == "One change could save 56.3 ms of each 116 ms step"
    assert lines[3] == "First: Load batches in worker processes (finding 2)"
    assert "1. Feed the device without making it wait  high  input-stall" in lines
    # Nobody watches a pipe: no progress, no colours.
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


def test_markdown() -> None:
    assert run("analyze", SLOW, "--format", "markdown").stdout.startswith("# ")


def test_a_page_is_whole_and_sarif_is_json() -> None:
    page = run("analyze", SLOW, "--format", "html").stdout
    assert page.startswith("<!doctype html>")
    assert '"captures/0/views/steps"' in page, "a page shows the views, like the tab"
    log = json.loads(run("analyze", SLOW, "--format", "sarif").stdout)
    assert [one["ruleId"] for one in log["runs"][0]["results"]] == [
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


def test_run_chooses_captures() -> None:
    done = run("analyze", SLOW.parent, "--format", "json", "--run", "^jax_")
    runs = [report["run"] for report in json.loads(done.stdout)["reports"]]
    assert sorted(runs) == ["jax_healthy", "jax_recompiling"]
    assert "no run matches 'nothing'. Runs: jax_healthy" in error(
        "analyze", SLOW.parent, "--run", "nothing"
    )
    assert "'(' is no regular expression" in error("analyze", SLOW, "--run", "(")


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


@pytest.mark.parametrize(
    ("profile", "level", "status"),
    [(SLOW, "high", 1), (SLOW, "low", 1), (HEALTHY, "low", 0), (HEALTHY, "high", 0)],
)
def test_fail_on_a_finding(profile: Path, level: str, status: int) -> None:
    done = run("analyze", profile, "--fail-on", level, status=status)
    assert done.stdout, "the report is printed all the same"


def test_fail_on_a_higher_severity_than_was_found() -> None:
    # Of two ranks one straggles, which leaves a hundredth of the step to hide: severity low.
    profile = ROOT / "demo_logs" / "pytorch_ddp_straggler"
    found = ["analyze", profile, "--select", "exposed-communication", "--fail-on"]
    run(*found, "low", status=1)
    run(*found, "medium")


def test_usage_errors_end_in_one_line() -> None:
    assert "Missing argument" in error("analyze")
    assert "No such command 'analyse'" in error("analyse", SLOW)
    assert re.search("No such option.*--formt", error("analyze", SLOW, "--formt", "json"))
    assert "'pdf' is not one of" in error("analyze", SLOW, "--format", "pdf")
    assert "--parameters" in error("analyze", SLOW, "--parameters", "0")


def test_what_is_not_there(tmp_path: Path) -> None:
    assert "nowhere" in error("analyze", tmp_path / "nowhere")
    (tmp_path / "notes.txt").write_text("hello", encoding="utf-8")
    line = error("analyze", tmp_path)
    assert "holds no profile (1 files scanned)" in line
    assert "*.pt.trace.json" in line


def test_a_file_that_is_no_profile(tmp_path: Path) -> None:
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


def test_what_was_not_looked_at_is_said(tmp_path: Path) -> None:
    # Among 2001 files of data one is not looked into.
    (tmp_path / "data").mkdir()
    for i in range(2001):
        (tmp_path / "data" / f"{i}.json").write_bytes(b"{}")
    gap = "of 2,001 JSON files whose names do not end in .pt.trace.json, 2,000 were looked into"
    assert f"holds no profile (2,001 files scanned; {gap})." in error("analyze", tmp_path)
    shutil.copytree(SLOW, tmp_path / "run")
    done = run("analyze", tmp_path, "--format", "json")
    assert [report["run"] for report in json.loads(done.stdout)["reports"]] == ["run"]
    assert done.stderr.startswith(f"note: {tmp_path} was not looked through to its end: of 2,00")
    assert done.stderr.endswith("Name a directory nearer to the profiles to see all.\n")


def test_rules_and_their_pages() -> None:
    listed = run("rules").stdout
    for rule in all_rules():
        assert re.search(rf"^{rule.id} +{rule.category} +{rule.title}", listed, re.MULTILINE)
    page = run("explain", "input-stall").stdout
    assert page.startswith("# input-stall\n")
    assert "## When to ignore" in page
    assert "`input-stall.minimum_share` = 0.05 (5.0 %)" in page
    assert "`perfadvisor rules` lists all" in error("explain", "input-stal")


@pytest.mark.parametrize(
    "arguments",
    [
        ["analyze", str(SLOW)],
        ["analyze", str(SLOW), "--format", "json"],
        ["compare", str(SLOW), str(HEALTHY)],
        ["rules"],
    ],
    ids=["text", "json", "compare", "rules"],
)
@pytest.mark.skipif(sys.platform == "win32", reason="pipes break differently there")
def test_a_reader_that_has_gone_is_no_error(arguments: list[str]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tb_perfadvisor", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == b""
    assert process.wait(timeout=60) == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("format", ["text", "json"])
def test_a_full_disk_is_said(format: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tb_perfadvisor", "analyze", SLOW, "--format", format],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == "error: standard output: cannot be written: No space left on device.\n"


def test_help_names_what_an_option_takes_and_what_stands_for_it() -> None:
    text = " ".join(run("analyze", "--help", width=150).stdout.split())
    for line in (
        "Usage: python -m tb_perfadvisor analyze [OPTIONS] PATH",
        "PATH <str> A logdir, a run or one file. [required]",
        "--format <text|json|markdown|html|sarif> How to write the reports. [default: text]",
        "--select <list[str]> Run only this rule; may be repeated.",
        "--workers <int range> [x>=1] Processes that read files;",
        "from the user's cache directory. [default: cache]",
    ):
        assert line in text
    assert "Reads PyTorch, TensorFlow and JAX profiles" in run(status=2).stdout


def test_every_option_has_its_help_and_every_rule_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name, command in app.commands.items():
        assert command.help, name
        assert f"perfadvisor {name}" in readme, f"the README does not show {name}"
        for parameter in command.params:
            assert parameter.help, f"{name} {parameter.name} has no help"
    for rule in all_rules():
        assert f"| `{rule.id}` |" in readme


def findings(path: Path, *options: str) -> list[dict[str, object]]:
    (report,) = json.loads(run("analyze", path, "--format", "json", *options).stdout)["reports"]
    return [{key: found[key] for key in ("rule_id", "saving")} for found in report["findings"]]


def test_files_are_read_again_when_something_has_changed(tmp_path: Path) -> None:
    (source,) = SLOW.rglob("*.pt.trace.json.gz")
    path = tmp_path / source.name
    shutil.copy(source, path)
    first = findings(path)
    assert [found["rule_id"] for found in first][:1] == ["input-stall"]
    # Same size, same time, broken in the middle: whoever reads it sees that.
    stamp = path.stat()
    half = stamp.st_size // 2
    path.write_bytes(source.read_bytes()[:half] + bytes(stamp.st_size - half))
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert findings(path) == first
    assert "truncated-file" in run("analyze", path, "--no-cache", "--format", "json").stdout
    os.utime(path)
    assert "truncated-file" in run("analyze", path, "--format", "json").stdout


DEMO = ROOT / "demo_logs"


def compared(*arguments: object, status: int = 0) -> list[dict[str, Any]]:
    """The comparisons as JSON."""
    done = run("compare", *arguments, "--format", "json", status=status)
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["generator"]["name"] == "tb_perfadvisor"
    assert str(ROOT) not in done.stdout, "no absolute path leaves the machine"
    return list(document["comparisons"])


def test_compare_as_text() -> None:
    done = run("compare", SLOW, HEALTHY, width=80)
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert " ".join(lines[0].split()) == "Run Step Speed-up Input wait Samples/s Comm."
    assert lines[4] == "pytorch_input_fixed against pytorch_input_slow"
    assert lines[5] == "1.64 times as fast: 70.4 ms a step in place of 116 ms"
    assert any(re.match(r"input-stall +56\.3 ms .* 54\.0 ms \(96 %\) +fixed$", x) for x in lines)
    assert max(map(len, lines)) <= 80
    assert done.stderr == ""
    assert "\x1b" not in done.stdout


def test_compare_as_json_and_markdown() -> None:
    (comparison,) = compared(SLOW, HEALTHY)
    assert comparison["base"]["name"] == "pytorch_input_slow"
    (target,) = comparison["targets"]
    assert target["verdict"] == "faster"
    assert sum(one["change_ns"] for one in target["causes"]) == target["change"]["change_ns"]
    page = run("compare", SLOW, HEALTHY, "--format", "markdown").stdout
    assert page.startswith("# Compared with pytorch\\_input\\_slow\n")


def test_compare_writes_to_a_file(tmp_path: Path) -> None:
    target = tmp_path / "comparison.json"
    done = run("compare", SLOW, HEALTHY, "--format", "json", "--output", target)
    assert done.stdout == ""
    assert len(json.loads(target.read_text(encoding="utf-8"))["comparisons"]) == 1


def test_compare_with_all_runs_of_a_logdir() -> None:
    (comparison,) = compared(SLOW, DEMO, "--run", r"^(\.|pytorch_input.*|jax_healthy)$")
    names = [target["run"]["name"] for target in comparison["targets"]]
    assert names == ["jax_healthy", "pytorch_input_fixed"]


def test_compare_two_logdirs_run_by_run(tmp_path: Path) -> None:
    for name, source in (("x/train", SLOW), ("x/eval", HEALTHY), ("y/train", HEALTHY)):
        shutil.copytree(source, tmp_path / name)
    done = run("compare", tmp_path / "x", tmp_path / "y", "--format", "json")
    document = json.loads(done.stdout)
    (comparison,) = document["comparisons"]
    assert (comparison["base"]["name"], comparison["targets"][0]["run"]["name"]) == (
        "x/train", "y/train",
    )  # fmt: skip
    assert document["notes"] == ["Run 'eval' of the base has no counterpart of that name."]
    assert done.stderr == "note: Run 'eval' of the base has no counterpart of that name.\n"


@pytest.mark.parametrize(
    ("base", "target", "limit", "status"),
    [
        # 70 to 116 ms: 64 % more, and 53 % for sure.
        (HEALTHY, SLOW, 5, 1),
        (HEALTHY, SLOW, 0, 1),
        (HEALTHY, SLOW, 90, 0),
        (SLOW, HEALTHY, 0, 0),
        (SLOW, SLOW, 0, 0),
    ],
)
def test_compare_fails_on_a_regression(base: Path, target: Path, limit: int, status: int) -> None:
    done = run("compare", base, target, "--fail-on-regression", limit, status=status)
    assert done.stdout, "the comparison is printed all the same"
    assert done.stderr == ""


def test_compare_says_that_a_regression_could_not_be_seen(tmp_path: Path) -> None:
    events = ["ProfilerStep#1"]
    steps = [
        {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": 10, "dur": 5}
        for name in (*events, "aten::mm")
    ]
    for name in ("a", "b"):
        path = tmp_path / name / "w.pt.trace.json"
        path.parent.mkdir()
        path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": steps[1:]}), "utf-8")
    done = run("compare", tmp_path / "a", tmp_path / "b", "--fail-on-regression", 1)
    assert done.stderr == (
        "note: b: whether it has become slower cannot be told. 5.00 µs recorded in place of "
        "5.00 µs; without steps, nothing is known of speed.\n"
    )


def test_compare_needs_something_readable_on_both_sides(tmp_path: Path) -> None:
    assert "nowhere" in error("compare", SLOW, tmp_path / "nowhere")
    assert "holds no profile" in error("compare", tmp_path, SLOW)
    bad = tmp_path / "worker.pt.trace.json"
    bad.write_bytes(b"\x00 this is no JSON")
    assert bad.name in error("compare", SLOW, bad)
    assert "Missing argument" in error("compare", SLOW)
    assert "no run matches 'nothing'" in error("compare", SLOW, HEALTHY, "--run", "nothing")
    assert "--fail-on-regression" in error("compare", SLOW, HEALTHY, "--fail-on-regression", "-1")
    config = tmp_path / "advice.toml"
    config.write_text('ignore = ["typo"]', encoding="utf-8")
    assert "no rule 'typo'" in error("compare", SLOW, HEALTHY, "--config", config)


def test_compare_notes_a_bad_file_among_good_ones(tmp_path: Path) -> None:
    shutil.copytree(HEALTHY, tmp_path / "good")
    broken = tmp_path / "bad" / "plugins" / "profile" / "s" / "host.xplane.pb"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"\xff" * 100)
    done = run("compare", SLOW, tmp_path, "--format", "json")
    document = json.loads(done.stdout)
    ((comparison,), (line,)) = document["comparisons"], document["notes"]
    assert [target["run"]["name"] for target in comparison["targets"]] == ["good"]
    assert done.stderr == f"note: {line}\n"
    assert line.startswith("bad/plugins/profile/s/host.xplane.pb: ")
    # Named by itself it is what was asked for.
    assert "host.xplane.pb" in error("compare", SLOW, tmp_path / "bad")
    assert "host.xplane.pb" in error("compare", tmp_path / "bad", SLOW)
    shutil.rmtree(tmp_path / "good")
    shutil.copytree(tmp_path / "bad", tmp_path / "worse")
    assert "host.xplane.pb" in error("compare", SLOW, tmp_path)


def test_compare_needs_to_know_which_capture_is_meant(tmp_path: Path) -> None:
    (source,) = SLOW.glob("*.gz")
    for name in ("one.pt.trace.json.gz", "two.pt.trace.json.gz"):
        shutil.copy(source, tmp_path / name)
    line = error("compare", tmp_path, HEALTHY)
    assert "holds 2 captures (one, two). Name the file or the session of one of them." in line
    (comparison,) = compared(tmp_path / "one.pt.trace.json.gz", tmp_path / "two.pt.trace.json.gz")
    assert comparison["targets"][0]["change"]["change_ns"] == 0


def test_compare_sees_that_a_file_has_changed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for source, status in ((SLOW, 1), (HEALTHY, 0)):
        for old in (tmp_path / "run").iterdir():
            old.unlink()
        (profile,) = source.glob("*.gz")
        shutil.copy(profile, tmp_path / "run" / profile.name)
        run("compare", HEALTHY, tmp_path / "run", "--fail-on-regression", 5, status=status)
        run("compare", HEALTHY, tmp_path / "run", "--fail-on-regression", 5, status=status)
        cold = ("--no-cache", "--workers", 2)
        run("compare", HEALTHY, tmp_path / "run", "--fail-on-regression", 5, *cold, status=status)
