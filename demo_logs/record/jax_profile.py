"""Profiles a few numbered steps of a JAX training loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import jax

PROFILED_STEPS = 5
SKIPPED_STEPS = 3


def profile_steps(
    step: Callable[[], object], directory: Path, between: Callable[[], object] = lambda: None
) -> int:
    """Runs eight steps and writes a profile of the last five into ``directory``.

    Args:
        step: the training step.
        directory: where the profile goes.
        between: what the loop does between two steps, outside of their events.

    Returns:
        Mean wall time of a recorded step, in nanoseconds.
    """
    for _ in range(SKIPPED_STEPS):
        between()
        step()
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # Python's call stack would fill the file
    with jax.profiler.trace(str(directory), profiler_options=options):
        start_ns = time.perf_counter_ns()
        for number in range(SKIPPED_STEPS, SKIPPED_STEPS + PROFILED_STEPS):
            between()
            # Viewers distinguish steps by number.
            with jax.profiler.StepTraceAnnotation("train", step_num=number):
                step()
        return (time.perf_counter_ns() - start_ns) // PROFILED_STEPS
