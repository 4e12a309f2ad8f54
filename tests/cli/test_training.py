"""`perfadvisor training` on event files that TensorBoard's own writer made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from tb_perfadvisor.cli import app
from tests.support.command import error


def log(directory: Path, times: dict[int, float], tag: str = "train/loss") -> None:
    """Write one scalar at each step, logged at the given second."""
    writer = EventFileWriter(str(directory))
    for step, second in times.items():
        value = summary_pb2.Summary.Value(tag=tag, simple_value=1.0)
        summary = summary_pb2.Summary(value=[value])
        writer.add_event(event_pb2.Event(wall_time=1e9 + second, step=step, summary=summary))
    writer.close()


@pytest.fixture
def logdir(tmp_path: Path) -> Path:
    """A run of 300 steps, half a second each, that stops for 20 s after step 200."""
    log(
        tmp_path / "resnet",
        {step: step / 2 + (20 if step > 200 else 0) for step in range(0, 310, 10)},
    )
    return tmp_path


def test_text_names_the_usual_step_and_the_pause(logdir: Path) -> None:
    done = CliRunner().invoke(app, ["training", str(logdir)])
    assert done.exit_code == 0, done.output
    assert "500 ms per step as a rule" in done.stdout
    assert "steps 0 to 300 in 170 s" in done.stdout
    (pause,) = [line for line in done.stdout.splitlines() if line.startswith("Pause")]
    # 20 of 170 s.
    assert pause.split()[-6:] == ["200–210", "1", "20.0", "s", "11.8", "%"]


def test_json_has_the_numbers(logdir: Path) -> None:
    done = CliRunner().invoke(app, ["training", str(logdir), "--format", "json"])
    (run,) = json.loads(done.stdout)
    assert (run["run"], run["tag"], run["step_ns"]) == ("resnet", "train/loss", 5e8)
    (delay,) = run["delays"]
    assert delay["reason"] == "pause"
    assert delay["cost_ns"] == 20_000_000_000


def test_runs_without_steps_are_named(logdir: Path) -> None:
    log(logdir / "short", {3: 1.0})
    done = CliRunner().invoke(app, ["training", str(logdir)])
    assert done.exit_code == 0
    assert "without a scalar that was logged at two steps: short." in done.stderr


def test_directory_without_event_files_is_an_error(tmp_path: Path) -> None:
    assert "contains no event file" in error("training", str(tmp_path))


def test_names_in_event_files_are_text(tmp_path: Path) -> None:
    log(tmp_path, {0: 0.0, 1: 1.0}, tag="loss\x1b[31m[bold]")
    done = CliRunner().invoke(app, ["training", str(tmp_path)])
    assert "\x1b" not in done.stdout
    assert "[bold]" in done.stdout
