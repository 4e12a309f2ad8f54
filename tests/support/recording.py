"""Record a profile with a framework, in a separate process, and analyze it."""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tb_perfadvisor import analyze
from tb_perfadvisor.machine.facts import RUN_SUFFIX, SUFFIX
from tb_perfadvisor.report.report import Report
from tests.support.command import ROOT

# What is imported once for all programs of a framework. `torch._dynamo` comes with an optimizer.
IMPORTED = {
    "accelerate": ("torch", "torch._dynamo"),
    "grain": ("jax",),
    "jax": ("jax",),
    "keras": ("tensorflow",),
    "lightning": ("torch", "torch._dynamo"),
    "tensorflow": ("tensorflow",),
    "torch": ("torch", "torch._dynamo"),
    "transformers": ("torch", "torch._dynamo"),
}
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}


def facts_files(folder: Path) -> list[Path]:
    """The files of facts beside recordings, without those about whole runs."""
    found = sorted(folder.rglob(f"*{SUFFIX}"))
    return [path for path in found if not path.name.endswith(RUN_SUFFIX)]


class Printed(NamedTuple):
    """What a program printed."""

    stdout: str
    stderr: str


def record(script: str, module: str, folder: Path, *arguments: str) -> Report:
    """Run a script that records into the given folder, and analyze the result."""
    run(script, module, folder, str(folder), *arguments)
    return analyze(folder)


def run(script: str, module: str, folder: Path, *arguments: str, **environment: str) -> Printed:
    """Run a script in a folder, in a copy of a process that has imported its framework.

    Args:
        script: A program that must end without an error.
        module: What it needs; without it, the test is skipped.
        folder: Its working directory.
        *arguments: Its command line.
        **environment: Variables beside those of this process.
    """
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    with tempfile.TemporaryDirectory() as outputs:
        paths = [Path(outputs, name) for name in ("stdout", "stderr")]
        program = {
            "script": script,
            "arguments": arguments,
            "folder": str(folder),
            "environment": {**os.environ, **QUIET, **environment},
            "outputs": [str(path) for path in paths],
        }
        server = _server(IMPORTED[module])
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(program) + "\n")
        server.stdin.flush()
        status = int(server.stdout.readline())
        stdout, stderr = (path.read_text(encoding="utf-8") for path in paths)
    assert status == 0, stderr[-3000:]
    return Printed(stdout, stderr)


@cache
def _server(modules: tuple[str, ...]) -> subprocess.Popen[str]:
    """A process that has imported some modules, for as long as this one lives."""
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.support.forked", *modules],
        env={**os.environ, **QUIET},
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(server.communicate)  # it ends with its input
    return server
