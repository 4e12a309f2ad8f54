"""`perfadvisor training`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tb_perfadvisor.cli import app
from tests.support.command import error
from tests.support.event_files import write_scalar

START = 1e9


@pytest.fixture
def logdir(tmp_path: Path) -> Path:
    """A run of 300 steps, half a second each, that stops for 20 s after step 200."""
    times = {step: START + step / 2 + (20 if step > 200 else 0) for step in range(0, 310, 10)}
    write_scalar(tmp_path / "resnet", "train/loss", times)
    return tmp_path


def test_text_names_the_usual_step_and_the_pause(logdir: Path) -> None:
    done = CliRunner().invoke(app, ["training", str(logdir)])
    assert done.exit_code == 0, done.output
    assert "500 ms per step without the profiler" in done.stdout
    assert "Steps 0 to 300 in 2.83 minutes" in done.stdout
    (pause,) = [line for line in done.stdout.splitlines() if line.startswith("Pause without")]
    # 20 of 170 s.
    assert pause.split()[-6:] == ["200–210", "1", "20.0", "s", "11.8", "%"]


def test_a_run_that_is_named_alone_has_its_name(logdir: Path) -> None:
    done = CliRunner().invoke(app, ["training", str(logdir / "resnet")])
    assert done.stdout.startswith("resnet\n")


def test_json_has_the_numbers(logdir: Path) -> None:
    done = CliRunner().invoke(app, ["training", str(logdir), "--format", "json"])
    (run,) = json.loads(done.stdout)
    assert (run["run"], run["tag"], run["regimes"][0]["step_ns"]) == ("resnet", "train/loss", 5e8)
    (delay,) = run["delays"]
    assert delay["reason"] == "pause"
    assert delay["cost_ns"] == 20_000_000_000


def test_runs_without_steps_are_named(logdir: Path) -> None:
    write_scalar(logdir / "short", "loss", {3: START})
    done = CliRunner().invoke(app, ["training", str(logdir)])
    assert done.exit_code == 0
    assert "without a scalar that was logged at two steps: short." in done.stderr


def test_directory_without_event_files_is_an_error(tmp_path: Path) -> None:
    assert "contains no event file" in error("training", str(tmp_path))


def test_names_in_event_files_are_text(tmp_path: Path) -> None:
    write_scalar(tmp_path, "loss\x1b[31m[bold]", {0: START, 1: START + 1})
    done = CliRunner().invoke(app, ["training", str(tmp_path)])
    assert "\x1b" not in done.stdout
    assert "[bold]" in done.stdout
