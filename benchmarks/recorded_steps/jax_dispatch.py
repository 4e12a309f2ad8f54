"""JAX training loops, each synchronous, dispatching ahead with markers, and without markers.

    python -m recorded_steps.jax_dispatch LOOP FORM DIRECTORY [STEPS]

Writes one recording and its true step times below DIRECTORY.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np

from recorded_steps.timing import Times, mean_ns

FORMS = ("synchronous", "marked", "unmarked")
"""Read the loss back after each step and mark steps; dispatch ahead and mark; dispatch ahead."""

_WARM_UP_STEPS = 5
_STEPS = 12
"""Recorded, and measured before and after the recording."""

Step = Callable[[], Any]
"""Runs one step, and returns the loss, which may not be computed yet."""


def _parameters(*sizes: int) -> list[Any]:
    keys = jax.random.split(jax.random.key(0), len(sizes))
    shapes = zip(keys, pairwise(sizes), strict=False)
    return [0.05 * jax.random.normal(key, shape) for key, shape in shapes]


def _loss(parameters: list[Any], batch: Any) -> Any:
    hidden = batch
    for weight in parameters:
        hidden = jnp.tanh(hidden @ weight)
    return jnp.mean(jnp.square(hidden))


def _update(parameters: list[Any], batch: Any) -> tuple[list[Any], Any]:
    loss, slopes = jax.value_and_grad(_loss)(parameters, batch)
    return [w - 0.01 * slope for w, slope in zip(parameters, slopes, strict=True)], loss


def readback() -> Step:
    """One program a step on a batch that stays on the device."""
    parameters, batch = _parameters(512, 1024, 1024, 512), jnp.ones((512, 512))
    train_step = jax.jit(_update)

    def step() -> Any:
        nonlocal parameters
        parameters, loss = train_step(parameters, batch)
        return loss

    return step


def scan() -> Step:
    """Twenty updates of a small model a step, scanned in one program."""
    parameters, batches = _parameters(128, 256, 128), jnp.ones((20, 1024, 128))

    train_epoch = jax.jit(lambda parameters: jax.lax.scan(_update, parameters, batches))

    def step() -> Any:
        nonlocal parameters
        parameters, losses = train_epoch(parameters)
        return losses

    return step


def healthy() -> Step:
    """A batch transferred during the step before, and two programs: gradients and update."""
    parameters = _parameters(512, 1024, 512)
    moments = [jnp.zeros_like(weight) for weight in parameters]
    random = np.random.default_rng(0)
    arrays = cycle([random.standard_normal((1024, 512), np.float32) for _ in range(4)])
    batches: Iterator[Any] = (jax.device_put(array) for array in arrays)
    batch = next(batches)
    gradients = jax.jit(jax.value_and_grad(_loss))

    def update(
        parameters: list[Any], moments: list[Any], slopes: list[Any]
    ) -> tuple[list[Any], list[Any]]:
        moments = [0.9 * m + 0.1 * g for m, g in zip(moments, slopes, strict=True)]
        updated = [w - 0.01 * m for w, m in zip(parameters, moments, strict=True)]
        return updated, moments

    apply_update = jax.jit(update)

    def step() -> Any:
        nonlocal parameters, moments, batch
        loss, slopes = gradients(parameters, batch)
        parameters, moments = apply_update(parameters, moments, slopes)
        batch = next(batches)
        # Wait for the parameters, too: the loss is computed before them.
        return loss, parameters

    return step


LOOPS: dict[str, Callable[[], Step]] = {"readback": readback, "scan": scan, "healthy": healthy}


def record(loop: str, form: str, directory: Path, steps: int = _STEPS) -> Times:
    """Record a loop, and measure it before, during and after.

    Args:
        loop: Of `LOOPS`.
        form: Of `FORMS`.
        directory: Where the profile goes.
        steps: How many to record.
    """
    step = LOOPS[loop]()
    result: Any = None

    def run(number: int) -> None:
        nonlocal result
        with _mark(form, number):
            result = step()
            if form == "synchronous":
                jax.device_get(result)

    def wait() -> object:
        return jax.block_until_ready(result)

    mean_ns(_WARM_UP_STEPS, run, wait)
    before_ns = mean_ns(steps, run, wait)
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with jax.profiler.trace(str(directory), profiler_options=options):
        recorded_ns = mean_ns(steps, run, wait)
    after_ns = mean_ns(steps, run, wait)
    return Times((before_ns + after_ns) / 2, recorded_ns)


def _mark(form: str, number: int) -> AbstractContextManager[None]:
    if form == "unmarked":
        return nullcontext()
    marker: AbstractContextManager[None] = jax.profiler.StepTraceAnnotation(
        "train", step_num=number
    )
    return marker


if __name__ == "__main__":
    target = Path(sys.argv[3])
    target.mkdir(parents=True, exist_ok=True)
    record(sys.argv[1], sys.argv[2], target, *map(int, sys.argv[4:])).write(target)
