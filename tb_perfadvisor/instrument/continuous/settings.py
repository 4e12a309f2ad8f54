"""The settings that all frameworks share."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Literal

from tb_perfadvisor.instrument.continuous.profiler import (
    ContinuousProfiler,
    is_switched_off,
    logger,
)
from tb_perfadvisor.instrument.continuous.recorders import Recorder, TorchRecorder
from tb_perfadvisor.instrument.continuous.schedule import Advisor, Plan
from tb_perfadvisor.instrument.ranks import worker_name_of_rank, worker_name_of_torch
from tb_perfadvisor.instrument.step_timers import StepTimers


def make_profiler(
    logdir: str | os.PathLike[str],
    recorder: Recorder,
    rank: int,
    *,
    every: int = 1_000,
    steps: int = 5,
    first: int = 20,
    slower_than: float | None = 3.0,
    rich_every: int = 4,
    ranks: int | Literal["all"] = 0,
    keep_last: int = 5,
    keep_slowest: int = 1,
    advise: bool = False,
    publish: bool = False,
    early: int | None = None,
    pairs: bool = False,
    most_share: float | None = None,
    most_bytes: int | None = None,
) -> ContinuousProfiler:
    """A profiler that records a few steps now and then.

    Args:
        logdir: A run's directory below TensorBoard's log directory. Each recording becomes a
            directory in it, named after its first step.
        recorder: Of the framework.
        rank: Of this process.
        every: Steps from the start of one recording to the next.
        steps: Steps that a recording keeps.
        first: Steps before the first recording. It also waits until the times of the steps have
            settled.
        slower_than: Also record after a step that took this many times the median; None for never.
        rich_every: Each of these recordings also has shapes, memory and stacks, which cost more;
            0 for none.
        ranks: The rank that records, or "all": then all record the same steps, and slow steps are
            not watched for.
        keep_last: How many of the latest recordings stay.
        keep_slowest: How many recordings with the slowest steps stay, besides.
        advise: Analyze each recording in a process of low priority, and log the headline.
        publish: Also write its findings as texts and scalars for TensorBoards without the plugin,
            below `perf_advisor` in the run's directory.
        early: Steps before a recording that is kept only if the program ends before another.
        pairs: Whether a rich recording follows the first one, and no other is rich.
        most_share: The most that recordings may cost of the time after the first minute (0-1).
        most_bytes: What recordings may take on disk beyond the newest and the rich one.

    Raises:
        UsageError: If the settings contradict each other, or the directory is a URL.
    """
    plan = Plan(
        every=every,
        steps=steps,
        first=first,
        slower_than=slower_than,
        rich_every=rich_every,
        early=early,
        pairs=pairs,
        most_share=most_share,
        most_bytes=most_bytes,
        is_fixed=ranks == "all",
    )
    of_torch = isinstance(recorder, TorchRecorder)
    worker = worker_name_of_torch if of_torch else partial(worker_name_of_rank, rank)
    # One process publishes the recordings of all.
    published = Path(logdir) if publish and rank == 0 else None
    return ContinuousProfiler(
        logdir,
        recorder,
        plan,
        is_active=ranks in ("all", rank),
        keep_last=keep_last,
        keep_slowest=keep_slowest,
        advisor=Advisor(logger(), published, advises=advise) if advise or published else None,
        timers=None if is_switched_off() else StepTimers(Path(logdir).expanduser(), worker),
    )
