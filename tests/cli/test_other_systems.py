"""What only Linux has is never needed: each part has a plain fallback, forced here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tb_perfadvisor.execution.execution import available_processors
from tb_perfadvisor.execution.limits import DEFAULT_MEMORY_LIMIT_BYTES, limits_from_environment
from tb_perfadvisor.ingest.discovery import discover
from tb_perfadvisor.ingest.files.tree import is_url, long_path, short_path
from tb_perfadvisor.plugin import worker
from tb_perfadvisor.plugin.log_directories import Root, roots_of
from tests.support.command import DEMO, ROOT, SLOW, run

# What Windows lacks, and macOS in part.
LACKING = ("sched_getaffinity", "sysconf", "geteuid", "getuid", "nice", "fork", "forkpty")
MODULES = ("resource", "fcntl", "pwd", "grp", "termios")
WITHOUT = f"""
import os, sys
for name in {LACKING}:
    if hasattr(os, name):
        delattr(os, name)
for name in {MODULES}:
    sys.modules[name] = None
real_open = open
class OpenWithoutProc:  # no function: pathlib of Python 3.10 would make a method of it
    def __call__(self, file, *arguments, **options):
        if str(file).startswith(("/proc", "/sys", "/dev/shm")):
            raise FileNotFoundError(2, "No such file or directory", str(file))
        return real_open(file, *arguments, **options)
import builtins, io
builtins.open = io.open = OpenWithoutProc()
"""


def python(program: str, *arguments: str, cache: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT + program, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PERFADVISOR_CACHE_DIR": str(cache)},
        timeout=120,
        check=False,
    )


# Several commands, one after the other.
COMMANDS = """
from tb_perfadvisor.cli import main
paths = sys.argv[1:]
for command, path in zip(("analyze", "doctor", "publish"), paths):
    sys.argv[1:] = [command, path]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, (command, ended.code)
"""


def test_commands_need_nothing_of_linux(tmp_path: Path) -> None:
    ranks, copy = DEMO / "synthetic_gpu_allreduce_8rank", tmp_path / "copy"
    copy.mkdir()
    (path, *_) = SLOW.glob("*.pt.trace.json*")
    (copy / path.name).write_bytes(path.read_bytes())
    paths = [str(ranks), str(copy), str(copy)]
    done = python(COMMANDS, *paths, cache=tmp_path / "cache")
    assert done.returncode == 0, done.stderr
    assert "synthetic_gpu_allreduce_8rank" in done.stdout
    assert list((copy / "perf_advisor").iterdir())


def test_a_job_of_the_tab_needs_nothing_of_linux(tmp_path: Path) -> None:
    import msgspec

    (capture,) = discover(SLOW).captures
    output = tmp_path / "out"
    output.mkdir()
    (output / worker.CAPTURE).write_bytes(msgspec.json.encode(capture))
    done = python(
        "from tb_perfadvisor.plugin.worker import main; sys.exit(main())",
        *("--root", str(SLOW), "--output", str(output)),
        cache=tmp_path / "cache",
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((output / worker.REPORT).read_bytes())
    assert report["findings"][0]["rule_id"] == "input-stall"


def test_processors_and_memory_are_counted_elsewhere_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.delattr(os, "sysconf", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    assert available_processors() == 12
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert available_processors() == 1
    assert limits_from_environment(print).memory_bytes == DEFAULT_MEMORY_LIMIT_BYTES


@pytest.mark.parametrize(
    ("path", "opened"),
    [
        ("C:\\logs\\run", "C:\\logs\\run"),
        ("C:\\" + "a" * 300, "\\\\?\\C:\\" + "a" * 300),
        ("C:/" + "a" * 300 + "/b.json", "\\\\?\\C:\\" + "a" * 300 + "\\b.json"),
        ("\\\\server\\share\\" + "a" * 300, "\\\\?\\UNC\\server\\share\\" + "a" * 300),
        ("\\\\?\\C:\\" + "a" * 300, "\\\\?\\C:\\" + "a" * 300),
    ],
)
def test_long_paths_on_windows(path: str, opened: str) -> None:
    assert long_path(path, is_windows=True) == opened
    assert long_path(path, is_windows=False) == path
    assert short_path(opened) == path.replace("/", "\\").removeprefix("\\\\?\\")


@pytest.mark.parametrize("path", ["C:\\logs", "c:/logs", "\\\\server\\share\\logs"])
def test_drives_and_shares_are_local(path: str) -> None:
    assert not is_url(path)
    assert Root(path, "").label == "logs"


def test_a_drive_is_not_the_name_of_a_group() -> None:
    (root,) = roots_of("", r"C:\logs")
    assert root.group == ""


@pytest.mark.skipif(os.name == "nt", reason="as deep as Linux allows")
def test_long_paths_are_read(tmp_path: Path) -> None:
    below = tmp_path
    while len(str(below)) < 3_000:
        below = below / ("d" * 240)
    below.mkdir(parents=True)
    (source,) = SLOW.glob("*.pt.trace.json*")
    (below / source.name).write_bytes(source.read_bytes())
    (report,) = json.loads(run("analyze", tmp_path, "--format", "json").stdout)["reports"]
    assert report["findings"]


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege there")
def test_a_run_is_itself_by_any_path(tmp_path: Path) -> None:
    (tmp_path / "same").symlink_to(SLOW)
    result = run("compare", SLOW, tmp_path / "same")
    assert "is compared with itself" in result.stderr


def test_written_files_are_the_same_on_every_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The page names the hash of its script.
    run("analyze", SLOW, "--format", "html", "-o", tmp_path / "report.html")
    assert b"\r\n" not in (tmp_path / "report.html").read_bytes()
