"""Measures what a change brings, on a machine that others use, with both versions at the same time.

Both run at once on one core, so that whatever makes the core slow makes both slow. What counts is
the processor time per step of each, of its children too, and the time that it sleeps on purpose: on
a core of its own, a step would take about as long. Nothing is said of what several cores would do
at once.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

_SITE = Path(__file__).with_name("steps_site")
_WARM_UP_STEPS = 10
_LONGEST_S = 240.0
_END_S = 15.0


def gains(
    before: Path,
    after: Path,
    command: Sequence[str],
    *,
    marker: str,
    core: int,
    seconds: float,
    pairs: int,
) -> list[float]:
    """The shares of the step that a change saved, one for each pair of runs.

    Args:
        before: Where the original is started.
        after: Where the changed program is started.
        command: The program; `python` is this interpreter.
        marker: What ends a step.
        core: The core that both share.
        seconds: How long both run; less if one of them ends.
        pairs: How many pairs to run.

    Raises:
        RuntimeError: If a version makes too few steps.
    """
    found = []
    for _ in range(pairs):
        with tempfile.TemporaryDirectory() as folder:
            logs = [Path(folder, "before"), Path(folder, "after")]
            runs = [
                _start(where, command, marker, core, log)
                for where, log in zip((before, after), logs, strict=True)
            ]
            _wait(runs, seconds)
            old_s, new_s = map(_step_s, logs)
            found.append(1 - new_s / old_s)
    return found


def environment() -> dict[str, str]:
    """What programs of the lists run with."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(_SITE), os.environ.get("PYTHONPATH", "")))),
        "MPLBACKEND": "Agg",
        "JAX_PLATFORMS": "cpu",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "KERAS_HOME": "keras-home",
        "PERFADVISOR_MADE_UP_DATA": "1",
    }


def _start(
    folder: Path, command: Sequence[str], marker: str, core: int, log: Path
) -> subprocess.Popen[bytes]:
    words = [sys.executable, *command[1:]] if command[0] == "python" else list(command)
    process = subprocess.Popen(
        words,
        cwd=folder,
        env={
            **environment(),
            "OMP_NUM_THREADS": "1",
            "PERFADVISOR_MARKER": marker,
            "PERFADVISOR_STEPS": str(log),
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.sched_setaffinity(process.pid, {core})
    return process


def _wait(runs: Sequence[subprocess.Popen[bytes]], seconds: float) -> None:
    """Let both run for a while, and end them."""
    ends_s = time.monotonic() + min(seconds, _LONGEST_S)
    while time.monotonic() < ends_s and any(run.poll() is None for run in runs):
        time.sleep(0.1)
    for run in runs:
        if run.poll() is None:
            run.send_signal(signal.SIGTERM)
    for run in runs:
        try:
            run.wait(_END_S)
        except subprocess.TimeoutExpired:
            run.kill()
            run.wait()


def _step_s(log: Path) -> float:
    """The time of a step after the warm-up."""
    rows = json.loads(log.read_text("utf-8")) if log.exists() else []
    warm_up = min(_WARM_UP_STEPS, len(rows) // 3)
    if len(rows) < warm_up + 2:
        raise RuntimeError(f"only {len(rows)} steps were noted.")
    (first, begin_s), (last, end_s) = rows[warm_up], rows[-1]
    step_s: float = (end_s - begin_s) / (last - first)
    return step_s
