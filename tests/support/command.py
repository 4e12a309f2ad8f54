"""Run the command as a user's shell does, on runs of the demo."""

from __future__ import annotations

import io
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from tb_perfadvisor.cli import main

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "demo_logs"
SLOW = DEMO / "pytorch_input_slow"
HEALTHY = DEMO / "pytorch_input_fixed"


@dataclass(frozen=True)
class Result:
    """What a command printed, and its exit status."""

    stdout: str
    stderr: str
    returncode: int | str | None


def run(*arguments: object, status: int | None = 0, width: int = 120) -> Result:
    """Run the command in this process; any exception that reaches the user fails the test.

    Args:
        *arguments: The command line.
        status: The exit status to expect; None for any.
        width: Columns of the terminal.
    """
    stdout, stderr = io.StringIO(), io.StringIO()
    with (
        redirect_stdout(stdout),
        redirect_stderr(stderr),
        patch.dict(os.environ, COLUMNS=str(width)),
        patch.object(sys, "argv", ["perfadvisor", *map(str, arguments)]),
    ):
        try:
            main()
        except SystemExit as ended:
            returncode = ended.code
    printed = stderr.getvalue() + stdout.getvalue()
    assert "Traceback (most recent" not in printed, printed[-4000:]
    assert status is None or returncode == status, stderr.getvalue()
    return Result(stdout.getvalue(), stderr.getvalue(), returncode)


def error(*arguments: object) -> str:
    """The message of a refused command: one line on stderr, nothing on stdout."""
    result = run(*arguments, status=2)
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    return line
