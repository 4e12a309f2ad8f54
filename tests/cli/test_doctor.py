"""`perfadvisor doctor` names the files it used, those it did not use, and commands that help."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tb_perfadvisor import analyze, environment
from tb_perfadvisor.cli.terminal import EXIT_USAGE
from tb_perfadvisor.errors import NothingFoundError
from tb_perfadvisor.ingest.profile_tab import is_dated, logdir_above, move_into_session
from tests.support.command import DEMO, run


def doctor(path: Path, status: int = 0) -> str:
    return run("doctor", path, status=status).stdout


def test_used_and_unused_files_are_listed(tmp_path: Path) -> None:
    shutil.copytree(DEMO / "jax_healthy", tmp_path / "jax")
    shutil.copytree(DEMO / "pytorch_input_slow", tmp_path / "torch")
    (tmp_path / "cut.pt.trace.json").write_text('{"a": 1}')
    printed = doctor(tmp_path)
    assert "used: jax/plugins/profile/2026_11_21_04_33_38/host0.xplane.pb (xplane, " in printed
    assert "Profile tab: shown" in printed
    assert printed.count("reads only .xplane.pb files: it cannot show 1 of these captures.") == 1
    assert "Not used (1):\n  cut.pt.trace.json: " in printed


def test_of_many_files_the_first_are_listed_and_how_to_see_the_others(tmp_path: Path) -> None:
    logs = tmp_path / "my logs"
    for at in range(30):
        (logs / f"{at:02}").mkdir(parents=True)
        (logs / f"{at:02}" / "cut.pt.trace.json").write_text('{"a": 1}')
        shutil.copytree(DEMO / "jax_healthy", logs / f"jax{at:02}")
    (broken,) = (logs / "jax29").rglob("*.xplane.pb")
    broken.write_bytes(broken.read_bytes()[:1000])
    printed = doctor(logs)
    assert printed.count("  used: ") == 20 + 1
    assert "broken: " in printed  # the last one, in any case
    assert f"And 9 more captures: perfadvisor doctor '{logs}' --all" in printed
    assert "Not used (30):\n  00/cut.pt.trace.json: " in printed
    assert printed.count("/cut.pt.trace.json: ") == 20
    assert f"  and 10 more: perfadvisor doctor '{logs}' --all" in printed
    printed = run("doctor", logs, "--all").stdout
    assert printed.count("  used: ") == 30
    assert printed.count("/cut.pt.trace.json: ") == 30
    assert "more" not in printed


def test_a_file_that_analyze_refuses_is_not_used(tmp_path: Path) -> None:
    events = [
        {"ph": "M", "name": "process_name", "pid": 2, "args": {"name": "Ascend Hardware"}},
        {"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 1},
    ]
    (tmp_path / "trace_view.json").write_text(json.dumps(events), encoding="utf-8")
    reason = "this is a trace_view.json of Ascend's profiler"
    printed = doctor(tmp_path, status=EXIT_USAGE)
    assert f"Not used (1):\n  trace_view.json: {reason}" in printed
    assert "used: " not in printed
    with pytest.raises(NothingFoundError, match=reason):
        analyze(tmp_path)


def test_the_suggested_command_makes_the_profile_tab_show_the_file(tmp_path: Path) -> None:
    (source,) = (DEMO / "jax_healthy").rglob("*.xplane.pb")
    run = tmp_path / "my run"
    run.mkdir()
    shutil.copy(source, run / "host0.xplane.pb")
    os.utime(run / "host0.xplane.pb", (86_400, 86_400))
    (command,) = [line for line in doctor(tmp_path).splitlines() if "mkdir -p" in line]
    subprocess.run(command, shell=True, check=True)
    assert (run / "plugins/profile/1970_01_02_00_00_00/host0.xplane.pb").is_file()
    assert "Profile tab: shown" in doctor(tmp_path)


def test_a_path_below_the_logdir_that_works_names_the_logdir(tmp_path: Path) -> None:
    shutil.copytree(DEMO / "jax_healthy", tmp_path / "jax")
    inside = tmp_path / "jax" / "plugins" / "profile"
    assert f"Profile tab: shown with --logdir {tmp_path / 'jax'}" in doctor(inside)
    assert logdir_above(str(tmp_path), "jax/plugins/profile/s/h.xplane.pb") is None


def test_a_session_that_vertex_ai_does_not_upload(tmp_path: Path) -> None:
    shutil.copytree(DEMO / "jax_healthy", tmp_path / "jax")
    (session,) = (tmp_path / "jax" / "plugins" / "profile").iterdir()
    session.rename(session.with_name("mine"))
    assert "rename this one to upload it" in doctor(tmp_path)
    assert is_dated("2026_11_21_04_33_38")
    assert not is_dated("2026_11_21_04_33_38_b")


def test_nothing_found_is_explained_and_fails(tmp_path: Path) -> None:
    (tmp_path / "readme.txt").write_text("nothing")
    assert "No readable profile was found." in doctor(tmp_path, status=2)


def test_names_are_quoted_for_the_shell() -> None:
    command = move_into_session("/logs", "a b'; rm x/h.xplane.pb", 0)
    assert command.startswith(
        "mkdir -p '/logs/a b'\"'\"'; rm x/plugins/profile/1970_01_01_00_00_00/'"
    )


def notes(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], **broken: str) -> list[str]:
    monkeypatch.setattr(environment, "installed", versions.get)
    monkeypatch.setattr(environment, "_plugin", lambda name: versions.get(f"plugin {name}"))
    problems = {name.replace("__", "."): text for name, text in broken.items()}
    monkeypatch.setattr(environment, "_import_problem", lambda module: problems.get(module, ""))
    return [note.id for note in environment.environment_notes(Path("/nowhere"))]


GOOD = {"tensorboard": "2.21.0", "plugin perf_advisor": "", "plugin profile": "", "xprof": "2.24"}


def test_problems_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert notes(monkeypatch, GOOD) == []
    assert notes(monkeypatch, {}) == ["tensorboard-missing", "profile-missing"]
    old = {**GOOD, "tensorboard": "2.20.0"}
    assert notes(monkeypatch, {**old, "setuptools": "81.0"}) == []
    assert notes(monkeypatch, {**old, "setuptools": "82.0.1"}) == ["pkg-resources-missing"]
    assert notes(monkeypatch, old) == ["pkg-resources-missing"]
    assert notes(monkeypatch, GOOD, tensorboard__program="no") == ["tensorboard-broken"]
    broken = "xprof__convert__raw_to_tool_data"
    assert notes(monkeypatch, GOOD, **{broken: "no"}) == ["xprof-broken"]
    assert notes(monkeypatch, {"tensorboard": "2.21", "plugin profile": ""}) == ["plugin-unknown"]


def test_a_driver_that_restricts_profiling_to_administrators(tmp_path: Path) -> None:
    parameters = tmp_path / "params"
    parameters.write_text("ModifyDeviceFiles: 1\nRmProfilingAdminOnly: 1\n")
    (note,) = environment._profiling(parameters)
    assert "NVreg_RestrictProfilingToAdminUsers=0" in note.remedy
    parameters.write_text("RmProfilingAdminOnly: 0\n")
    assert environment._profiling(parameters) == []


def test_a_missing_cupti_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver, loaded = tmp_path / "params", tmp_path / "lib"
    monkeypatch.setattr(environment, "_library_directories", lambda: [loaded])

    def ids() -> list[str]:
        return [note.id for note in environment._cupti(driver, tmp_path)]

    assert ids() == []  # no GPU of NVIDIA's
    driver.touch()
    assert ids() == ["cupti-missing"]
    toolkit = tmp_path / "cuda-12.8" / "extras" / "CUPTI" / "lib64"
    toolkit.mkdir(parents=True)
    assert ids() == ["cupti-missing"]
    (toolkit / "libcupti.so.12").touch()
    assert ids() == ["cupti-aside"]
    (note,) = environment._cupti(driver, tmp_path)
    assert note.remedy == f"export LD_LIBRARY_PATH={toolkit}:$LD_LIBRARY_PATH"
    loaded.mkdir()
    (loaded / "libcupti.so.13").touch()
    assert ids() == []


def test_directories_searched_for_libcupti(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tmp_path / "nvidia" / "cuda_cupti" / "lib"
    wheel.mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/here{os.pathsep}/there")
    looked = environment._library_directories()
    assert {wheel, tmp_path / "torch" / "lib", Path("/here"), Path("/there")} <= set(looked)


def test_a_broken_xplane_and_errors_reported_by_its_profiler(tmp_path: Path) -> None:
    session = tmp_path / "run" / "plugins" / "profile" / "2026_01_01_00_00_00"
    session.mkdir(parents=True)
    (source,) = (DEMO / "jax_healthy").rglob("*.xplane.pb")
    whole = source.read_bytes()
    (session / "garbage.xplane.pb").write_bytes(b"\x07garbage" * 100)
    assert "broken: this is not an XSpace profile." in doctor(tmp_path)
    (session / "garbage.xplane.pb").unlink()
    (session / "cut.xplane.pb").write_bytes(whole[:-100])
    printed = doctor(tmp_path)
    assert "broken: it is truncated" in printed
    assert "Profile tab: may show nothing" in printed
    assert "No problems found" not in printed
    (session / "cut.xplane.pb").unlink()
    complaint = b"No CUDA device found"
    (session / "host.xplane.pb").write_bytes(whole + b"\x12" + bytes([len(complaint)]) + complaint)
    printed = doctor(tmp_path)
    assert "the profiler reported: No CUDA device found" in printed
    assert "broken:" not in printed
    assert "No problems found" in printed


def test_an_empty_tool_list_cached_by_the_profile_tab(tmp_path: Path) -> None:
    shutil.copytree(DEMO / "jax_healthy", tmp_path / "jax")
    (session,) = (tmp_path / "jax" / "plugins" / "profile").iterdir()
    (session / ".cached_tools.json").write_text('{"version": 1, "files": {}, "tools": []}')
    printed = doctor(tmp_path)
    assert "No problems found" not in printed
    (command,) = [line for line in printed.splitlines() if line.startswith("    rm ")]
    subprocess.run(command, shell=True, check=True)
    assert "Profile tab: shown" in doctor(tmp_path)


def test_only_a_few_of_many_ranks_are_listed(tmp_path: Path) -> None:
    (source,) = (DEMO / "pytorch_input_slow").glob("*.gz")
    for rank in range(9):
        shutil.copy(source, tmp_path / f"worker{rank}.1795234073764326979.pt.trace.json.gz")
    printed = doctor(tmp_path)
    assert printed.count("used: ") == 4
    assert "and 5 more files of this kind" in printed


def test_a_broken_import_is_described_by_its_last_line() -> None:
    assert environment._import_problem("json") == ""
    assert "No module named 'json.nothing'" in environment._import_problem("json.nothing")
    assert environment._import_problem("no_such_module_at_all.x") == (
        "there is no module no_such_module_at_all."
    )
