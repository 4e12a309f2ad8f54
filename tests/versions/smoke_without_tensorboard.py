"""What needs TensorBoard, where only requirements-engine.txt is installed."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest


def _run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tb_perfadvisor", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_tensorboard_is_not_installed() -> None:
    assert find_spec("tensorboard") is None
    assert find_spec("werkzeug") is None


@pytest.mark.parametrize(
    "command", [["publish"], ["demo", "--port", "0"]], ids=lambda each: each[0]
)
def test_a_command_that_needs_it_says_so_in_one_line(command: list[str], logdir: Path) -> None:
    arguments = [*command, logdir] if command == ["publish"] else command
    done = _run(*arguments)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert "TensorBoard" in line
    assert "pip install tensorboard" in line


def test_doctor_says_what_is_missing(logdir: Path) -> None:
    done = _run("doctor", logdir / "pytorch_input_slow")
    assert "TensorBoard is not installed" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_recording_without_a_framework_says_so(tmp_path: Path) -> None:
    done = _run("run", "--logdir", tmp_path / "runs", "--", sys.executable, "-c", "print(1)")
    assert done.returncode == 0
    assert "nothing was recorded" in done.stderr
