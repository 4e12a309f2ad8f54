"""Step numbers and fetches for profiles of JAX programs.

    from tb_perfadvisor.instrument.jax import steps

    for batch in steps(loader):
        state, loss = train_step(state, batch)

Without marks a profile of JAX has no steps, and a loader in plain Python shows as time in which
nothing was recorded. The marks cost nothing to speak of while no profiler runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from itertools import count
from typing import TypeVar

Batch = TypeVar("Batch")

# What the reader of profiles takes for the step's thread waiting for input.
_FETCH = "WaitForNextBatch"


def step(number: int, *, name: str = "train") -> AbstractContextManager[None]:
    """Mark what runs inside as one step.

    Args:
        number: Of the step.
        name: Of the loop: training and evaluation have steps of their own.
    """
    import jax

    marked: AbstractContextManager[None] = jax.profiler.StepTraceAnnotation(name, step_num=number)
    return marked


def steps(loader: Iterable[Batch], *, name: str = "train", first: int = 0) -> Iterator[Batch]:
    """A loader's batches, each marked as it is fetched, and what is done with it as a step.

    The mark of a step ends where the loop asks for the next batch. Dispatch is asynchronous: the
    device may still compute then.

    Args:
        loader: Anything that gives batches, of Grain, tf.data, PyTorch or plain Python.
        name: Of the loop.
        first: The number of its first step.
    """
    import jax

    batches = iter(loader)
    for number in count(first):
        # In front of the step: a fetch that finds no batch left must leave no step behind.
        with jax.profiler.TraceAnnotation(_FETCH):
            try:
                batch = next(batches)
            except StopIteration:
                return
        with step(number, name=name):
            yield batch
