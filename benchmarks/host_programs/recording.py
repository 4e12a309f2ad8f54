"""Measures and records one program: `python -m host_programs.recording NAME DIRECTORY`.

The slow and the fixed program run in processes of their own, in turns, without the profiler. Then
the slow one is recorded, and the fixed one.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from host_programs.catalog import PROGRAMS

_TURNS = 3
_WARM_UP_S, _MEASURED_S = 1.0, 2.0
_RECORDED_STEPS = 12
_KERAS_STEPS = 64
"""A multiple of all steps per execution."""


def main() -> None:
    """Measure and record one program; or, within, run one of its variants."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("name")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--variant", choices=("slow", "fixed"))
    parser.add_argument("--record", action="store_true")
    given = parser.parse_args()
    if given.variant:
        print(_run(given.name, given.variant == "slow", given.directory if given.record else None))
        return
    times: dict[str, list[float]] = {"slow": [], "fixed": []}
    for _ in range(_TURNS):
        for variant, found in times.items():
            found.append(_alone(given.name, variant, given.directory))
    for variant in times:
        _alone(given.name, variant, given.directory / variant, "--record")
    (given.directory / "times.json").write_text(json.dumps(times), encoding="utf-8")


def _alone(name: str, variant: str, directory: Path, *options: str) -> float:
    directory.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "host_programs.recording", name, str(directory)]
    done = subprocess.run(
        [*command, "--variant", variant, *options], check=True, capture_output=True, text=True
    )
    return float(done.stdout.split()[-1])


def _run(name: str, is_slow: bool, directory: Path | None) -> float:
    """Nanoseconds of a step; with a directory, of a recorded one."""
    module = next(program.module for program in PROGRAMS if program.name == name)
    made = getattr(importlib.import_module(f"host_programs.{module}"), name)(is_slow)
    if module == "jax_programs":
        return _steps(made) if directory is None else _record_steps(made, directory)
    made(_KERAS_STEPS)  # compiles
    if directory is None:
        repeated = 0
        begin = time.perf_counter()
        while time.perf_counter() - begin < _MEASURED_S:
            made(_KERAS_STEPS)
            repeated += _KERAS_STEPS
        return (time.perf_counter() - begin) / repeated * 1e9
    begin = time.perf_counter()
    if module == "keras_programs":
        import tensorflow as tf

        with tf.profiler.experimental.Profile(str(directory)):
            made(_KERAS_STEPS)
    else:
        import jax

        with jax.profiler.trace(str(directory)):
            made(_KERAS_STEPS)
    return (time.perf_counter() - begin) / _KERAS_STEPS * 1e9


def _steps(step: Callable[[], object]) -> float:
    begin = time.perf_counter()
    while time.perf_counter() - begin < _WARM_UP_S:
        step()
    count, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < _MEASURED_S:
        step()
        count += 1
    return (time.perf_counter() - begin) / count * 1e9


def _record_steps(step: Callable[[], object], directory: Path) -> float:
    import jax

    begin = time.perf_counter()
    while time.perf_counter() - begin < _WARM_UP_S:
        step()
    with jax.profiler.trace(str(directory)):
        begin = time.perf_counter()
        for number in range(_RECORDED_STEPS):
            with jax.profiler.StepTraceAnnotation("train", step_num=number):
                step()
        return (time.perf_counter() - begin) / _RECORDED_STEPS * 1e9


if __name__ == "__main__":
    main()
