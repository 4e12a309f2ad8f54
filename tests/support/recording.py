"""Record a profile with a framework, in a separate process, and analyze it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tb_perfadvisor import analyze
from tb_perfadvisor.report.report import Report


def record(script: str, module: str, folder: Path, *arguments: str) -> Report:
    """Run a script that records into the given folder, and analyze the result."""
    done = run(script, module, folder, str(folder), *arguments)
    assert done.returncode == 0, done.stderr[-2000:]
    return analyze(folder)


def run(
    script: str, module: str, folder: Path, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Run a script in a folder, in a process, because frameworks are slow to import and noisy."""
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu"}
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=quiet,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
