"""The command as a user's shell runs it, and the demo's runs to run it on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "demo_logs"
SLOW = DEMO / "pytorch_input_slow"
HEALTHY = DEMO / "pytorch_input_fixed"


def run(*arguments: object, status: int = 0, width: int = 120) -> subprocess.CompletedProcess[str]:
    """Run the command; whatever happens, no traceback reaches the user."""
    done = subprocess.run(
        [sys.executable, "-m", "tb_perfadvisor", *map(str, arguments)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
        check=False,
        env={**os.environ, "COLUMNS": str(width), "PYTHONIOENCODING": "utf-8"},
    )
    assert "Traceback" not in done.stderr + done.stdout
    assert done.returncode == status, done.stderr
    return done


def error(*arguments: object) -> str:
    """What a refused command says: one line on stderr, nothing on stdout."""
    done = run(*arguments, status=2)
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    return line
