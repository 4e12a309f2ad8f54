"""The subprocess that runs one analysis."""

import json
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tb_perfadvisor.comparison.run_facts import RunFacts
from tb_perfadvisor.contract.names import report_name
from tb_perfadvisor.ingest.captures import Capture
from tb_perfadvisor.ingest.discovery import discover
from tb_perfadvisor.plugin import worker
from tb_perfadvisor.plugin.worker_process import WorkerProcess
from tb_perfadvisor.report.report import Report
from tb_perfadvisor.report.timeline.window import decode_events

REPOSITORY = Path(__file__).resolve().parents[2]
DEMO = REPOSITORY / "demo_logs"


def run(
    root: Path, capture: Capture, output: Path, *more: str, shell: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    output.mkdir()
    (output / worker.CAPTURE).write_bytes(msgspec.json.encode(capture))
    arguments = ["--root", str(root), "--output", str(output), *more]
    return subprocess.run(
        [*shell, sys.executable, "-W", "error", "-m", "tb_perfadvisor.plugin.worker", *arguments],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def demo(run_name: str) -> Capture:
    (capture,) = [c for c in discover(DEMO).captures if c.run == run_name]
    return capture


def test_worker_writes_report_views_window_row_and_facts(tmp_path: Path) -> None:
    done = run(DEMO, demo("pytorch_ddp_straggler"), tmp_path / "out", "--group", "g")
    assert done.returncode == 0, done.stderr
    out = tmp_path / "out"
    report = msgspec.json.decode((out / "report.json").read_bytes(), type=Report)
    assert report.run == "g/pytorch_ddp_straggler"
    assert report.views is None
    assert len(report.workers) == 2
    window = decode_events((out / "window.npz").read_bytes())
    assert window.worker == report.reference_worker
    # The reference rank, and the other one on its clock.
    assert len(window.start_ns) == sum(worker.events for worker in report.workers)
    steps = json.loads((out / "views.json").read_text())["steps"]
    assert len(steps["index"]) == report.steps.used
    stored = json.loads((out / "row.json").read_text())
    row = stored["row"]
    assert sum(stored["pace"]["block_ns"]) == sum(steps["duration_ns"])
    assert sum(stored["pace"]["block_steps"]) == report.steps.used
    assert (row["headline"], row["framework"]) == (report.headline, "pytorch")
    assert (row["device"], row["is_synthetic"]) == ("CPU", False)
    assert row["step_time_ns"] == report.overview.step_time_ns
    assert report.first is not None
    assert row["first_change"] == report.findings[report.first.index].title
    facts = msgspec.json.decode((out / "facts.json").read_bytes(), type=RunFacts)
    assert (facts.id, facts.name) == (report.id, report_name(report))
    assert facts.step_ns == steps["duration_ns"]
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    shares = [line["progress"] for line in lines if line["progress"] is not None]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert str(REPOSITORY) not in done.stderr


def test_report_gets_the_given_id(tmp_path: Path) -> None:
    done = run(DEMO, demo("jax_healthy"), tmp_path / "out", "--report-id", "abc")
    assert done.returncode == 0, done.stderr
    report = msgspec.json.decode((tmp_path / "out" / "report.json").read_bytes(), type=Report)
    assert (report.id, report.run) == ("abc", "jax_healthy")


def test_missing_file_is_reported_to_the_user(tmp_path: Path) -> None:
    done = run(tmp_path, demo("jax_healthy"), tmp_path / "out")
    assert done.returncode == 2
    error = json.loads(done.stderr.splitlines()[-1])["error"]
    assert error["kind"] == "input"
    assert error["message"] == "the file cannot be opened: No such file or directory."
    assert error["where"].endswith("host0.xplane.pb")
    assert list((tmp_path / "out").iterdir()) == []


def test_broken_file_is_reported_to_the_user(tmp_path: Path) -> None:
    session = tmp_path / "logs" / "plugins" / "profile" / "s"
    session.mkdir(parents=True)
    (session / "h.xplane.pb").write_bytes(b"\xff" * 100)
    (capture,) = discover(tmp_path / "logs").captures
    done = run(tmp_path / "logs", capture, tmp_path / "out")
    assert done.returncode == 2
    error = json.loads(done.stderr.splitlines()[-1])["error"]
    assert error["kind"] == "input"
    assert str(tmp_path) not in json.dumps(error)


@pytest.mark.skipif(sys.platform != "linux", reason="the limit differs")
def test_a_full_disk_is_no_bug(tmp_path: Path) -> None:
    """No file may grow beyond a kilobyte, as on a disk that is nearly full."""
    shell = ("sh", "-c", 'ulimit -f 1; exec "$@"', "sh")
    done = run(DEMO, demo("jax_healthy"), tmp_path / "out", shell=shell)
    assert done.returncode == 2
    error = json.loads(done.stderr.splitlines()[-1])["error"]
    assert (error["kind"], error["message"]) == (
        "input",
        "it could not be analyzed: File too large.",
    )


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the address space")
def test_analysis_fails_with_too_little_memory(tmp_path: Path) -> None:
    (tmp_path / worker.CAPTURE).write_bytes(msgspec.json.encode(demo("jax_healthy")))
    process = WorkerProcess(100 << 20)  # numpy alone maps more
    said: list[bytes] = []
    status = process.run(
        "tb_perfadvisor.plugin.worker",
        ["--root", str(DEMO), "--output", str(tmp_path)],
        said.append,
    )
    assert status != 0, said
    assert not process.is_alive


def test_one_process_analyzes_captures_as_others_do(tmp_path: Path) -> None:
    """Nothing of one capture is left for the next."""
    process = WorkerProcess(0)
    for at, name in enumerate(("jax_healthy", "pytorch_input_slow", "jax_healthy")):
        output = tmp_path / str(at)
        output.mkdir()
        (output / worker.CAPTURE).write_bytes(msgspec.json.encode(demo(name)))
        arguments = ["--root", str(DEMO), "--output", str(output)]
        assert process.run("tb_perfadvisor.plugin.worker", arguments, lambda _: None) == 0
        alone = tmp_path / f"{at} alone"
        assert run(DEMO, demo(name), alone).returncode == 0
        for file in alone.iterdir():
            assert _timeless(output / file.name) == _timeless(file), file.name
    process.close()


@pytest.mark.skipif(sys.platform != "linux", reason="others count differently")
def test_a_worker_of_a_large_server_is_not_large() -> None:
    large = b"x" * (300 << 20)
    program = "from tb_perfadvisor.plugin import worker_process as w; print(w._most_bytes())"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert 0 < int(done.stdout) < len(large)


def _timeless(file: Path) -> bytes:
    """What is in a file, without how long each rule took."""
    return re.sub(rb'"elapsed_ms":[0-9.e-]+', b"", file.read_bytes())


def test_worker_does_not_import_tensorboard() -> None:
    program = (
        "import sys; import tb_perfadvisor.api.comparisons;"
        "import tb_perfadvisor.plugin.worker, tb_perfadvisor.plugin.log_directories;"
        "print([m for m in sys.modules if m.split('.')[0] in ('tensorboard', 'torch', 'jax')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
