"""The command line and the Python API, in any environment where the package is installed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tb_perfadvisor

Perfadvisor = Callable[..., str]
ROOT = Path(__file__).resolve().parents[2]
DEMOS = sorted(
    path.name for path in (ROOT / "demo_logs").iterdir() if path.is_dir() and path.name != "record"
)
PAIRS = [
    ("pytorch_input_slow", "pytorch_input_fixed"),
    ("pytorch_ddp_straggler", "pytorch_ddp_balanced"),
    ("tensorflow_input_slow", "tensorflow_input_fixed"),
    ("jax_recompiling", "jax_healthy"),
    ("synthetic_gpu_allreduce_8rank", "synthetic_gpu_allreduce_8rank_fixed"),
    ("synthetic_tpu_padded", "synthetic_tpu_padded_fixed"),
]


def test_the_installed_package_is_tested() -> None:
    place = Path(tb_perfadvisor.__file__).resolve()
    assert place.is_relative_to(Path(sys.prefix).resolve())
    assert "site-packages" in place.parts


def test_every_pair_of_profiles_is_tried() -> None:
    assert {*DEMOS} == {name for pair in PAIRS for name in pair} | {"pytorch_whole_run"}


def test_no_rule_fails_and_no_signal_is_a_bug(reports: list[dict[str, Any]]) -> None:
    assert {report["run"].split("/")[0] for report in reports} == set(DEMOS)
    for report in reports:
        statuses = {outcome["status"] for outcome in report["outcomes"]}
        assert statuses <= {"found", "passed", "not_applicable"}, report["run"]
        assert report["steps"]["used"], report["run"]


@pytest.mark.parametrize("name", [slow for slow, _ in PAIRS])
def test_the_first_finding_is_the_known_cause(name: str, reports: list[dict[str, Any]]) -> None:
    label = json.loads((ROOT / "demo_logs" / name / "label.json").read_text("utf-8"))
    (report,) = (each for each in reports if each["run"] == name)
    assert report["findings"][0]["rule_id"] in label["acceptable_first_findings"]


@pytest.mark.parametrize("format", ["text", "json", "markdown", "html", "sarif", "brief"])
@pytest.mark.parametrize("name", DEMOS)
def test_every_profile_in_every_format(
    name: str, format: str, logdir: Path, perfadvisor: Perfadvisor
) -> None:
    printed = perfadvisor("analyze", logdir / name, "--format", format)
    assert name in printed.replace("\\_", "_")  # Markdown escapes underscores
    if format in ("json", "sarif", "brief"):
        json.loads(printed)


@pytest.mark.parametrize(("slow", "fixed"), PAIRS)
def test_the_fixed_program_is_faster(
    slow: str, fixed: str, logdir: Path, perfadvisor: Perfadvisor
) -> None:
    compared = json.loads(perfadvisor("compare", logdir / slow, logdir / fixed, "--format", "json"))
    (target,) = compared["comparisons"][0]["targets"]
    assert target["verdict"] == "faster", target["headline"]
    for format in ("text", "markdown"):
        printed = perfadvisor("compare", logdir / slow, logdir / fixed, "--format", format)
        assert slow in printed.replace("\\_", "_")


def test_a_gate_fails(logdir: Path, perfadvisor: Perfadvisor) -> None:
    perfadvisor("analyze", logdir / "pytorch_input_slow", "--fail-on", "medium", status=1)


def test_settings_from_a_file(tmp_path: Path, logdir: Path, perfadvisor: Perfadvisor) -> None:
    settings = tmp_path / "perfadvisor.toml"
    settings.write_text('ignore = ["input-stall"]\n[limits.step-gap]\nminimum_share = 0.2\n')
    path = logdir / "pytorch_input_slow"
    printed = json.loads(perfadvisor("analyze", path, "--config", settings, "--format", "json"))
    assert "input-stall" not in {each["rule_id"] for each in printed["reports"][0]["outcomes"]}


def test_doctor(logdir: Path, perfadvisor: Perfadvisor) -> None:
    assert "pytorch_input_slow" in perfadvisor("doctor", logdir)


def test_the_catalog(perfadvisor: Perfadvisor) -> None:
    assert "input-stall" in perfadvisor("rules")
    assert "When to ignore" in perfadvisor("explain", "input-stall")


def test_whole_runs(logdir: Path, perfadvisor: Perfadvisor) -> None:
    run = logdir / "pytorch_whole_run"
    assert "per step without the profiler" in perfadvisor("training", run)
    (described,) = json.loads(perfadvisor("training", run, "--format", "json"))
    assert described["regimes"][0]["step_ns"] > 0
    assert "pytorch_whole_run" in perfadvisor("history", run)
    json.loads(perfadvisor("history", run, "--format", "json"))


def test_anonymized_copy(tmp_path: Path, logdir: Path, perfadvisor: Perfadvisor) -> None:
    (profile,) = (logdir / "pytorch_input_slow").glob("*.pt.trace.json.gz")
    copy = tmp_path / profile.name
    perfadvisor("anonymize", profile, copy)
    printed = json.loads(perfadvisor("analyze", copy, "--format", "json"))
    assert printed["reports"][0]["findings"][0]["rule_id"] == "input-stall"


def test_a_patch(logdir: Path, programs: Path, perfadvisor: Perfadvisor) -> None:
    patch = perfadvisor("suggest", logdir / "pytorch_input_slow", "--repo", programs)
    assert "+    loader = DataLoader(Images(), batch_size=16, num_workers=" in patch


def test_the_python_api(logdir: Path) -> None:
    from tb_perfadvisor import analyze, analyze_all, compare, load, show

    slow, fixed = logdir / "pytorch_input_slow", logdir / "pytorch_input_fixed"
    report = analyze(slow)
    assert report.findings[0].rule_id == "input-stall"
    assert len(list(analyze_all(logdir / "jax_healthy"))) == 1
    assert compare(slow, fixed).targets[0].verdict == "faster"
    assert load(slow)
    assert report.headline in show(slow).text


def test_separate_processes_read_the_ranks(logdir: Path) -> None:
    # As a user's shell starts it; eight files in two worker processes.
    path = logdir / "synthetic_gpu_allreduce_8rank"
    command = [sys.executable, "-m", "tb_perfadvisor", "analyze", str(path), "--no-cache"]
    done = subprocess.run(
        [*command, "--workers", "2", "--format", "json"],
        capture_output=True, text=True, encoding="utf-8", timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (report,) = json.loads(done.stdout)["reports"]
    assert report["world_size"] == 8


def test_the_command_is_installed() -> None:
    command = Path(sys.executable).with_name("perfadvisor")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("perfadvisor ")
