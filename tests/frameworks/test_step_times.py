"""Step times of real recordings, beside the clock of the recorded program.

The loops dispatch ahead, or Keras's callback records them. The clock ran in the same process and at
the same time, so that other load of the machine is in both.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from recorded_steps.timing import Times
from tb_perfadvisor import analyze
from tests.support.command import ROOT
from tests.support.recording import run

PROGRAM = """
import runpy, sys
sys.path.insert(0, {benchmarks!r})
runpy.run_module("recorded_steps.{module}", run_name="__main__")
"""


def ratio_of(directory: Path, module: str, *arguments: object) -> tuple[float, int]:
    """Reported ÷ measured step time of one recording, and how many steps were used."""
    framework = "jax" if module.startswith("jax") else "tensorflow"
    name, form, *counts = map(str, arguments)
    program = PROGRAM.format(benchmarks=str(ROOT / "benchmarks"), module=module)
    run(program, framework, directory, name, form, str(directory), *counts)
    report = analyze(directory)
    assert report.overview.step_time_ns is not None
    recorded_ns = Times.read(directory).recorded_step_ns
    return report.overview.step_time_ns / recorded_ns, report.steps.used


@pytest.mark.parametrize(
    "loop", [pytest.param("readback", marks=pytest.mark.nightly), "scan", "healthy"]
)
def test_a_loop_that_dispatches_ahead(loop: str, tmp_path: Path) -> None:
    ratio, used = ratio_of(tmp_path, "jax_dispatch", loop, "marked", 30)
    # The host marks 30 steps in a few milliseconds; each computes for some ten. So what the clock
    # and the recording see differently of the first and the last step is little of the mean.
    assert ratio == pytest.approx(1, rel=0.05)
    assert used >= 29


@pytest.mark.parametrize("batches", [1, 12])
def test_batches_that_the_tensorboard_callback_records(batches: int, tmp_path: Path) -> None:
    ratio, used = ratio_of(tmp_path, "keras_batches", "dense", batches, 3)
    # What the callback does at the end of the recording is not in the step.
    assert ratio == pytest.approx(1, rel=0.1)
    assert used >= batches - 1
