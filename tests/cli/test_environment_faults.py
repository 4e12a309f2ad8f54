"""What the system lacks or forbids ends in a sentence, or does not matter."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tb_perfadvisor.error_log import write_error_log
from tb_perfadvisor.errors import logger
from tb_perfadvisor.execution import IN_PROCESS, open_execution
from tb_perfadvisor.execution.limits import limits_from_environment
from tb_perfadvisor.ingest.event_files.run_scalars import ScalarCache
from tb_perfadvisor.ingest.files import containment
from tb_perfadvisor.ingest.files.containment import BoundedDirectory, default_directory
from tests.support.command import HEALTHY, ROOT, SLOW, error, run

RANKS = SLOW.parent / "synthetic_gpu_allreduce_8rank"


def workers_of(arguments: list[str]) -> int:
    result = run("analyze", RANKS, "--no-cache", "--format", "json", *arguments)
    (report,) = json.loads(result.stdout)["reports"]
    return len(report["workers"])


# --- the cache directory ---------------------------------------------------------------------


@pytest.mark.parametrize("value", ["~nouser/x", "~nouser"])
def test_a_home_directory_that_does_not_exist(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERFADVISOR_CACHE_DIR", value)
    assert run("analyze", SLOW).stderr == ""
    assert "there is no such home directory" in error("demo", "--port", "0")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no HOME")
def test_no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As in a container whose user is only a number.
    monkeypatch.delenv("PERFADVISOR_CACHE_DIR", raising=False)
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    import pwd

    def nobody(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OSError, match="there is no such home directory"):
        default_directory()
    run("analyze", SLOW)
    assert list(tmp_path.iterdir()) == []  # no directory is called `~`


@pytest.fixture
def strangers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache directory that another user owns; only root could really make one."""
    directory = tmp_path / "cache"
    directory.mkdir(mode=0o700)
    monkeypatch.setattr(
        containment, "_is_own", lambda status: status.st_ino != directory.stat().st_ino
    )
    monkeypatch.setenv("PERFADVISOR_CACHE_DIR", str(directory))
    return directory


@pytest.mark.skipif(os.name == "nt" or os.geteuid() != 0, reason="only root can give files away")
def test_another_user_is_recognized(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, -1)
    with pytest.raises(PermissionError, match="it belongs to another user"):
        containment.make_private(tmp_path)


def test_the_cache_of_another_user_is_refused(strangers: Path) -> None:
    with pytest.raises(PermissionError, match="it belongs to another user"):
        BoundedDirectory(strangers, max_bytes=1)
    assert "another user" in run("analyze", SLOW).stderr
    assert "another user" in error("demo", "--port", "0")
    assert list(strangers.iterdir()) == []


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
@pytest.mark.parametrize("mode", [0o770, 0o702, 0o1777])
def test_a_cache_that_others_may_write_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    directory = tmp_path / "cache"
    directory.mkdir()
    directory.chmod(mode)
    monkeypatch.setenv("PERFADVISOR_CACHE_DIR", str(directory))
    said = run("analyze", SLOW).stderr
    assert said.startswith("note: nothing is kept for later: ")
    assert "others may write to it" in said
    assert f"chmod go-w {directory}" in run("doctor", SLOW).stdout
    assert "others may write to it" in error("demo", "--port", "0")
    assert list(directory.iterdir()) == []
    directory.chmod(0o755)
    assert run("analyze", SLOW).stderr == ""
    assert list(directory.iterdir()) != []


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_a_new_cache_is_private_whatever_the_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERFADVISOR_CACHE_DIR", str(tmp_path / "a" / "b"))
    before = os.umask(0)
    try:
        ScalarCache(containment.private_directory())
    finally:
        os.umask(before)
    made = [tmp_path / "a", *(path for path in (tmp_path / "a").rglob("*") if path.is_dir())]
    assert {path.stat().st_mode & 0o777 for path in made} == {0o700}
    assert len(made) == 5


@pytest.mark.skipif(sys.platform != "linux", reason="the limit differs")
def test_a_full_disk_costs_the_cache_only(tmp_path: Path) -> None:
    """No file may grow beyond a kilobyte, as on a disk that is nearly full."""
    expected = run("analyze", SLOW, "--format", "json", "--no-cache").stdout
    command = f"{sys.executable} -m tb_perfadvisor analyze {SLOW} --format json"
    done = subprocess.run(
        ["sh", "-c", f"ulimit -f 1; exec {command}"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PERFADVISOR_CACHE_DIR": str(tmp_path)},
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert findings(done.stdout) == findings(expected)
    assert [*(tmp_path / "entries").iterdir(), *(tmp_path / "staging").iterdir()] == []


def findings(text: str) -> Any:
    (report,) = json.loads(text)["reports"]
    return report["findings"]


def test_no_log_is_written_for_another_user(strangers: Path) -> None:
    log = write_error_log()
    logger().error("a bug")
    assert log.path is None
    assert list(strangers.iterdir()) == []


def test_the_tab_keeps_results_elsewhere(strangers: Path) -> None:
    from tb_perfadvisor.plugin.results import open_results

    results, problem = open_results()
    assert problem is not None
    assert "it belongs to another user" in problem
    results.close()
    assert list(strangers.iterdir()) == []


# --- processes and files ---------------------------------------------------------------------


def no_semaphores(*arguments: Any, **options: Any) -> Any:
    raise OSError(errno.EROFS, "Read-only file system")  # as with a read-only /dev/shm


def missing_semaphores(*arguments: Any, **options: Any) -> Any:
    raise ImportError("This platform lacks a functioning sem_open implementation")


@pytest.mark.parametrize("fault", [no_semaphores, missing_semaphores])
def test_without_semaphores_files_are_read_in_this_process(
    fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tb_perfadvisor.execution.process_pool._Pool", fault)
    with open_execution(workers=2) as execution:
        assert execution == IN_PROCESS
    assert workers_of(["--workers", "2"]) == 8


@pytest.mark.parametrize("most", [0, 1])
def test_processes_that_cannot_start(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    context = multiprocessing.get_context("spawn")
    real, started = context.Process.start, []

    def start(process: Any) -> None:
        if len(started) == most:
            raise OSError(errno.EMFILE, "Too many open files")
        started.append(process)
        real(process)

    monkeypatch.setattr(context.Process, "start", start)
    assert workers_of(["--workers", "3"]) == 8
    assert len(started) == most


@pytest.mark.skipif(sys.platform != "linux", reason="the limit differs")
@pytest.mark.parametrize("workers", [1, 3])
def test_a_dozen_file_descriptors(workers: int, tmp_path: Path) -> None:
    command = f"{sys.executable} -m tb_perfadvisor analyze {RANKS} --workers {workers} -f json"
    done = subprocess.run(
        ["sh", "-c", f"ulimit -n 12; exec {command}"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PERFADVISOR_CACHE_DIR": str(tmp_path)},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["reports"][0]["workers"]) == 8


def test_too_few_file_descriptors_are_no_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    from tb_perfadvisor.ingest import load

    def refuse(*arguments: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(load, "load_worker", refuse)
    assert "it could not be analyzed: Too many open files." in error("analyze", SLOW, "--no-cache")


# --- limits and clocks -----------------------------------------------------------------------


@pytest.mark.parametrize("value", ["1e300", "1e308", "9e18"])
def test_enormous_limits_are_the_largest_possible(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    from tb_perfadvisor.ingest.files.remote import fetched

    for name in ("TIME_LIMIT_S", "MEMORY_LIMIT_GIB", "FILE_CACHE_GIB"):
        monkeypatch.setenv(f"PERFADVISOR_{name}", value)
    limits = limits_from_environment(print)
    assert limits.time_s == threading.TIMEOUT_MAX
    assert 2**61 < limits.memory_bytes < 2**63
    assert 2**61 < fetched._max_bytes() < 2**63
    timer = threading.Timer(limits.time_s, lambda: None)
    timer.start()  # would raise in its thread
    timer.cancel()


@pytest.mark.parametrize("value", ["nan", "-1", "inf", "many", "0"])
def test_meaningless_limits_are_ignored(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = limits_from_environment(print)
    for name in ("TIME_LIMIT_S", "MEMORY_LIMIT_GIB"):
        monkeypatch.setenv(f"PERFADVISOR_{name}", value)
    assert limits_from_environment(print) == expected


@pytest.mark.parametrize("jump_s", [-(10**9), 10**9])
def test_results_survive_a_jump_of_the_clock(
    tmp_path: Path, jump_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERFADVISOR_CACHE_DIR", str(tmp_path))
    first = run("analyze", SLOW, "--format", "json").stdout
    real = time.time
    monkeypatch.setattr(containment.time, "time", lambda: real() + jump_s)
    assert run("analyze", SLOW, "--format", "json").stdout == first
    run("analyze", HEALTHY, "--format", "json")
    assert len(list((tmp_path / "entries").iterdir())) == 2


def test_an_impossible_date_of_a_file(tmp_path: Path) -> None:
    shutil.copytree(SLOW, tmp_path / "run")
    (path,) = (tmp_path / "run").glob("*.pt.trace.json*")
    for seconds in (-(2**31), 2**34):
        os.utime(path, (seconds, seconds))
        run("analyze", tmp_path)
        run("doctor", tmp_path)
