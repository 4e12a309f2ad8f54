"""Marks steps and input fetches in profiles of JAX programs.

    from tb_perfadvisor.instrument.jax import steps

    for batch in steps(loader):
        state, loss = train_step(state, batch)

Without these marks a JAX profile has no steps, and time in a plain Python loader has no events.
The cost of the marks is negligible while no profiler runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from itertools import count
from typing import Any, TypeVar

from tb_perfadvisor.instrument.continuous.profiler import ContinuousProfiler
from tb_perfadvisor.instrument.continuous.recorders import JaxRecorder
from tb_perfadvisor.instrument.continuous.settings import make_profiler

Batch = TypeVar("Batch")

# The xplane reader treats events with this name as waiting for input.
_FETCH = "WaitForNextBatch"


def step(number: int, *, name: str = "train") -> AbstractContextManager[None]:
    """A context manager that marks its body as one step.

    Args:
        number: The step number.
        name: The name of the loop, to tell training steps from evaluation steps.
    """
    import jax

    annotation: AbstractContextManager[None] = jax.profiler.StepTraceAnnotation(
        name, step_num=number
    )
    return annotation


def steps(loader: Iterable[Batch], *, name: str = "train", first: int = 0) -> Iterator[Batch]:
    """Iterate over a loader, marking each fetch and each step.

    A step's mark ends when the loop asks for the next batch. The device may still be computing
    then, because JAX dispatches asynchronously.

    Args:
        loader: Any iterable of batches: Grain, tf.data, PyTorch or plain Python.
        name: The name of the loop.
        first: The number of the first step.
    """
    import jax

    batches = iter(loader)
    for number in count(first):
        # Fetch before the step begins, so that the end of the data does not leave an empty step.
        with jax.profiler.TraceAnnotation(_FETCH):
            try:
                batch = next(batches)
            except StopIteration:
                return
        with step(number, name=name):
            yield batch


def continuous(logdir: str | os.PathLike[str], **settings: Any) -> ContinuousProfiler:
    """Record a few steps now and then, for as long as the program trains.

    Call `step()` on the result at the end of each training step; recorded steps are marked. JAX
    runs ahead of the device, so that the time of a step is that of its dispatch.

    Args:
        logdir: A run's directory below TensorBoard's log directory.
        **settings: As for `tb_perfadvisor.instrument.torch.continuous`. `ranks` counts JAX's
            processes.

    Raises:
        UsageError: If the settings contradict each other, or the directory is a URL.
    """
    import jax

    return make_profiler(logdir, JaxRecorder(), jax.process_index(), **settings)
