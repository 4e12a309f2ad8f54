"""Profiles a few steps of a PyTorch training loop, with shapes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch

WAIT_STEPS = 4
WARM_UP_STEPS = 2
ACTIVE_STEPS = 5


def profile_steps(step: Callable[[], object], directory: Path, worker_name: str = "worker0") -> int:
    """Runs eleven steps and writes a trace of the last five into ``directory``.

    The first steps of a loop are slow because workers start and caches fill, and the first steps
    of the profiler because it starts: ``wait`` and ``warmup`` skip both. Stacks and memory are off
    to keep the file small; turn on ``with_stack`` and ``profile_memory`` for source lines and
    memory advice.

    Returns:
        Mean wall time of a recorded step, in nanoseconds.
    """
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    durations_ns: list[int] = []
    with torch.profiler.profile(
        activities=activities,
        schedule=torch.profiler.schedule(
            wait=WAIT_STEPS, warmup=WARM_UP_STEPS, active=ACTIVE_STEPS, repeat=1
        ),
        on_trace_ready=torch.profiler.tensorboard_trace_handler(
            str(directory), worker_name=worker_name, use_gzip=True
        ),
        record_shapes=True,
    ) as profiler:
        for _ in range(WAIT_STEPS + WARM_UP_STEPS + ACTIVE_STEPS):
            start_ns = time.perf_counter_ns()
            step()
            durations_ns.append(time.perf_counter_ns() - start_ns)
            profiler.step()  # marks the step's end; after the last one the file is written
    return sum(durations_ns[-ACTIVE_STEPS:]) // ACTIVE_STEPS
