"""Ranks read on a real Dask cluster on loopback, one of whose workers is killed in the middle."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.execution.dask_cluster import open_cluster
from tests.support.command import DEMO, ROOT, run

distributed = pytest.importorskip("distributed", reason="the extra dask is not installed")

# One process runs them in this order: the first needs a scheduler without workers, the second one
# with no others than its own.
pytestmark = pytest.mark.xdist_group("dask")
EIGHT = DEMO / "synthetic_gpu_allreduce_8rank"
# The second file that this worker is given is its end.
DIES = """
import os, signal
from tb_perfadvisor.ingest import load

read, seen = load.load_worker, []

def load_worker(*arguments):
    seen.append(arguments)
    if len(seen) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return read(*arguments)

load.load_worker = load_worker
"""

# The command, which waits a second for a scheduler and not 15.
IMPATIENT = """
from tb_perfadvisor.cli import main
from tb_perfadvisor.execution import dask_cluster

dask_cluster._CONNECT_S = 1
main()
"""


@contextmanager
def started(*command: str, ready: str) -> Iterator[subprocess.Popen[str]]:
    """A process of ours, from the line that says it is ready to its end."""
    process = subprocess.Popen(
        [sys.executable, *command],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "DASK_LOGGING__DISTRIBUTED": "info"},
    )
    assert process.stderr is not None
    try:
        deadline = time.monotonic() + 60
        for line in process.stderr:
            if ready in line:
                break
            assert time.monotonic() < deadline, f"{command} does not get ready"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    """The address of a scheduler that has no workers yet."""
    port = free_port()
    options = ["--host", "127.0.0.1", "--port", str(port), "--no-dashboard"]
    with started("-m", "distributed.cli.dask_scheduler", *options, ready="Scheduler at:"):
        yield f"tcp://127.0.0.1:{port}"


@contextmanager
def worker(address: str, directory: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    arguments = ["--no-nanny", "--no-dashboard", "--nthreads", "1", "--host", "127.0.0.1"]
    arguments += ["--local-directory", str(directory), *options]
    command = ("-m", "distributed.cli.dask_worker", address, *arguments)
    with started(*command, ready="Registered to:") as process:
        yield process


@pytest.fixture(scope="module")
def working(scheduler: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the scheduler, with a worker."""
    with worker(scheduler, tmp_path_factory.mktemp("worker")):
        yield scheduler


def analyzed(
    path: Path, *options: str, status: int = 0, command: tuple[str, ...] = ("-m", "tb_perfadvisor")
) -> tuple[dict[str, Any], str]:
    arguments = ["analyze", str(path), "--format", "json", "--no-cache", *options]
    done = subprocess.run(
        [sys.executable, *command, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert done.returncode == status, done.stderr
    return json.loads(done.stdout) if done.stdout else {}, done.stderr


def without_times(document: dict[str, Any]) -> dict[str, Any]:
    for report in document["reports"]:
        for outcome in report["outcomes"]:
            outcome["elapsed_ms"] = 0
    return document


def test_what_is_wrong_with_a_cluster_is_said(scheduler: str) -> None:
    nobody = f"tcp://127.0.0.1:{free_port()}"
    _, error = analyzed(EIGHT, "--scheduler", nobody, status=2, command=("-c", IMPATIENT))
    assert f"no Dask scheduler answers at {nobody}" in " ".join(error.split())
    _, error = analyzed(EIGHT, "--scheduler", scheduler, status=2)
    assert "has no workers" in " ".join(error.split())


def test_a_worker_killed_in_the_middle_costs_nothing(scheduler: str, tmp_path: Path) -> None:
    preload = tmp_path / "dies.py"
    preload.write_text(DIES, encoding="utf-8")
    with (
        worker(scheduler, tmp_path / "a", "--preload", str(preload)) as victim,
        worker(scheduler, tmp_path / "b"),
    ):
        there, _ = analyzed(EIGHT, "--scheduler", scheduler)
        assert victim.wait(timeout=30) == -9
    here = json.loads(run("analyze", EIGHT, "--format", "json", "--no-cache").stdout)
    assert without_times(there) == without_times(here)
    assert len(there["reports"][0]["workers"]) == 8


def test_a_rank_that_cannot_be_read_is_named(working: str, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(EIGHT, runs)
    (broken,) = runs.glob("rank3.*")
    header = b'{"schemaVersion": 1, "distributedInfo": {"rank": 3, "world_size": 8}'
    broken.write_bytes(gzip.compress(header + b', "traceEvents": "none"}'))
    document, _ = analyzed(runs, "--scheduler", working)
    (report,) = document["reports"]
    assert [worker["rank"] for worker in report["workers"]] == [0, 1, 2, 4, 5, 6, 7]
    messages = [note["message"] for note in report["notes"]]
    assert any(message.startswith(f"{broken.name} was left out: ") for message in messages), (
        messages
    )


def test_names_of_any_kind_reach_the_workers(working: str, tmp_path: Path) -> None:
    escapes = "\x1b]0;title\x07\x9b31m\u202e"
    runs = [f"run{escapes}", os.fsdecode(b"bad\xff\xfe"), "two\nlines;$(x)"]
    for name in runs:
        (tmp_path / "runs" / name).mkdir(parents=True)
        for rank in (0, 1):
            (trace,) = EIGHT.glob(f"rank{rank}.*")
            shutil.copy(trace, tmp_path / "runs" / name / trace.name.replace("rank", f"{name}rank"))
    document, said = analyzed(tmp_path / "runs", "--scheduler", working)
    assert (said, document["rejected"]) == ("", [])
    assert {report["run"]: len(report["workers"]) for report in document["reports"]} == {
        r"run\x1b]0;title\x07\x9b31m\u202e": 2,
        r"bad\xff\xfe": 2,
        r"two\nlines;$(x)": 2,
    }


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "tcp://[::1", "nosuch://x", "ucx://x:1", "\x1b[2J:1", "two\nlines", ""]
)
def test_what_is_no_address_opens_no_client(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Such a client waits half a minute at the end of the process, and prints a traceback.
    monkeypatch.setattr(distributed, "Client", lambda *_, **__: pytest.fail("a client"))
    with (
        pytest.raises(UsageError, match="no Dask scheduler answers"),
        pytest.warns(FutureWarning) if address.startswith("ucx") else nullcontext(),
        open_cluster(address),
    ):
        pass
