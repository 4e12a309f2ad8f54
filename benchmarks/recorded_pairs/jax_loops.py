"""JAX training loops that the host slows down."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from jax_profile import profile_steps
from pairs import Role, mean_step_ns

from recorded_pairs.batch_ahead import augmented
from recorded_pairs.intervals import every, interval

Loop = tuple[Callable[[], None], Callable[[], None]]
"""What a loop does between two steps, and its step."""


def _nothing() -> None:
    """Do nothing between steps."""


def _parameters(*sizes: int) -> list[Any]:
    keys = jax.random.split(jax.random.key(0), len(sizes))
    shapes = zip(keys, pairwise(sizes), strict=False)
    return [0.05 * jax.random.normal(key, shape) for key, shape in shapes]


def _loss(parameters: list[Any], inputs: Any) -> tuple[Any, Any]:
    hidden = inputs
    for weight in parameters:
        hidden = jax.nn.relu(hidden @ weight)
    return jnp.mean(jnp.square(hidden)), hidden


def _update(parameters: list[Any], inputs: Any) -> tuple[list[Any], Any, Any]:
    (loss, outputs), gradients = jax.value_and_grad(_loss, has_aux=True)(parameters, inputs)
    updated = [value - 0.01 * slope for value, slope in zip(parameters, gradients, strict=True)]
    return updated, loss, outputs


class _Training:
    """Parameters and their update."""

    def __init__(self, *sizes: int, is_jitted: bool = True) -> None:
        jax.clear_caches()
        self.parameters = _parameters(*sizes)
        self._update = jax.jit(_update) if is_jitted else _update
        self.loss: Any = None
        self.outputs: Any = None

    def compile(self, update: Any) -> None:
        """Use another function for the update."""
        self._update = jax.jit(update)

    def step(self, inputs: Any) -> None:
        """Trains on one batch and waits for the result."""
        self.parameters, self.loss, self.outputs = self._update(self.parameters, inputs)
        jax.block_until_ready(self.parameters)


def lengths(role: Role) -> Loop:
    """Batches of varying size."""
    training = _Training(256, 1024, 256)
    number = 0

    def step() -> None:
        nonlocal number
        number += 1
        size = 2048 - 7 * number % 61
        inputs = np.zeros((size if role == "slow" else 2048, 256), np.float32)
        inputs[:size] = 1.0
        training.step(inputs)

    return _nothing, step


def metrics(role: Role) -> Loop:
    """Counts the five best predictions in Python, or the best one on the device."""
    training = _Training(512, 1024, 512, 16)
    inputs = jnp.ones((2048, 512))
    tally = jax.jit(lambda outputs: jnp.bincount(outputs.argmax(axis=-1), length=16))

    def count() -> None:
        if training.outputs is None:
            return
        if role == "fixed":
            tally(training.outputs)
            return
        counts: dict[int, int] = {}
        for row in np.asarray(training.outputs).tolist():
            for best in range(5):
                label = sorted(range(len(row)), key=row.__getitem__)[-1 - best]
                counts[label] = counts.get(label, 0) + 1

    return count, lambda: training.step(inputs)


def eager(role: Role) -> Loop:
    """Operators dispatched one by one, without jit."""
    training = _Training(*[64] * 24, is_jitted=role == "fixed")
    inputs = jnp.ones((2048, 64))
    return _nothing, lambda: training.step(inputs)


def numpy(role: Role) -> Loop:
    """Batches made by NumPy in each epoch, or once."""
    training = _Training(2048, 1536, 512, 10)
    known = [augmented(number, 256, 2048) for number in range(8)]
    number = 0
    batch: Any = None

    def between() -> None:
        nonlocal batch, number
        number += 1
        batch = augmented(number, 256, 2048) if role == "slow" else known[number % 8]

    return between, lambda: training.step(batch)


def logging(role: Role) -> Loop:
    """Writes a log line in each step, or rarely."""
    training = _Training(512, 1024, 1024, 256)
    inputs = jnp.ones((640, 512))
    log = tempfile.TemporaryFile("w")  # noqa: SIM115 - open as long as the loop runs

    def write() -> None:
        if training.loss is not None:
            log.write(f"{float(training.loss)}\n")
            log.flush()
            os.fsync(log.fileno())
            time.sleep(0.004)

    return every(interval(role), write), lambda: training.step(inputs)


def new_jit(role: Role) -> Loop:
    """Jits a function for each call, or once."""
    training = _Training(256, 1024, 512)
    inputs = jnp.ones((1024, 256))

    def step() -> None:
        if role == "slow":
            training.compile(lambda parameters, batch: _update(parameters, batch))
        training.step(inputs)

    return _nothing, step


def eager_optimizer(role: Role) -> Loop:
    """Adam for one parameter at a time, over forty layers, outside of any jit."""
    jax.clear_caches()
    parameters = _parameters(*[96] * 40)
    state = [(jnp.zeros_like(value), jnp.zeros_like(value)) for value in parameters]
    inputs = jnp.ones((512, 96))
    slopes = jax.jit(jax.grad(lambda *given: _loss(*given)[0]))
    number = 0

    def adam(parameters: Any, gradients: Any, state: Any, number: Any) -> tuple[Any, Any]:
        updated, moments = [], []
        for value, slope, (first, second) in zip(parameters, gradients, state, strict=True):
            first = 0.9 * first + 0.1 * slope
            second = 0.999 * second + 0.001 * jnp.square(slope)
            scaled = first / (1.0 - 0.9**number)
            root = jnp.sqrt(second / (1.0 - 0.999**number))
            updated.append(value - 0.001 * scaled / (root + 1e-8))
            moments.append((first, second))
        return updated, moments

    update = adam if role == "slow" else jax.jit(adam)

    def step() -> None:
        nonlocal parameters, state, number
        number += 1
        parameters, state = update(parameters, slopes(parameters, inputs), state, float(number))
        jax.block_until_ready(parameters)

    return _nothing, step


def callback(role: Role) -> Loop:
    """Inputs clipped within the compiled step by NumPy, or by JAX."""
    jax.clear_caches()
    parameters = _parameters(512, 1024, 1024, 256)
    inputs = jnp.asarray(augmented(0, 768, 512))

    def by_numpy(values: Any) -> Any:
        values = np.asarray(values)
        largest = np.quantile(np.abs(values), 0.99)
        return np.clip(values, -largest, largest)

    def clipped(values: Any) -> Any:
        if role == "slow":
            shape = jax.ShapeDtypeStruct(values.shape, values.dtype)
            return jax.pure_callback(by_numpy, shape, values)
        largest = 3.0 * jnp.std(values)
        return jnp.clip(values, -largest, largest)

    update = jax.jit(lambda parameters, batch: _update(parameters, clipped(batch)))

    def step() -> None:
        nonlocal parameters
        parameters, *_ = update(parameters, inputs)
        jax.block_until_ready(parameters)

    return _nothing, step


def dispatch(role: Role) -> Loop:
    """A thousand updates of a tiny model, in separate calls or in one."""
    jax.clear_caches()
    parameters = _parameters(16, 32, 8)
    batches = jnp.ones((1000, 16, 16))

    def update(parameters: Any, batch: Any) -> tuple[Any, Any]:
        updated, loss, _ = _update(parameters, batch)
        return updated, loss

    jitted = jax.jit(update)
    all_of_them = jax.jit(lambda parameters: jax.lax.scan(update, parameters, batches))
    split = list(batches)

    def step() -> None:
        nonlocal parameters
        if role == "fixed":
            parameters, _ = all_of_them(parameters)
        else:
            for batch in split:
                parameters, _ = jitted(parameters, batch)
        jax.block_until_ready(parameters)

    return _nothing, step


def static_number(role: Role) -> Loop:
    """A jitted step whose number is static, or an argument."""
    jax.clear_caches()
    parameters = _parameters(256, 768, 512)
    inputs = jnp.ones((1024, 256))
    number = 0

    def update(parameters: Any, batch: Any, number: Any) -> Any:
        updated, *_ = _update(parameters, batch * (1.0 + 1e-6 * number))
        return updated

    jitted = jax.jit(update, static_argnums=2 if role == "slow" else ())

    def step() -> None:
        nonlocal parameters, number
        number += 1
        parameters = jitted(parameters, inputs, number)
        jax.block_until_ready(parameters)

    return _nothing, step


def checkpoint(role: Role) -> Loop:
    """Writes all parameters to a file in each step, or rarely."""
    training = _Training(512, 1024, 512, 16)
    inputs = jnp.ones((1024, 512))
    folder = tempfile.TemporaryDirectory(prefix="pairs_")

    def save() -> None:
        arrays = [np.asarray(value) for value in training.parameters]
        np.savez(Path(folder.name) / "checkpoint.npz", *arrays)

    return every(interval(role), save), lambda: training.step(inputs)


PROGRAMS: dict[str, Callable[[Role], Loop]] = {
    "jax-lengths": lengths,
    "jax-metrics": metrics,
    "jax-eager": eager,
    "jax-numpy": numpy,
    "jax-logging": logging,
    "jax-new-jit": new_jit,
    "jax-eager-optimizer": eager_optimizer,
    "jax-callback": callback,
    "jax-dispatch": dispatch,
    "jax-static-number": static_number,
    "jax-checkpoint": checkpoint,
}


def measure(name: str, role: Role) -> int:
    """Mean step time without the profiler, in nanoseconds."""
    between, step = PROGRAMS[name](role)

    def both() -> None:
        between()
        step()

    return mean_step_ns(both)


def record(name: str, role: Role, directory: Path) -> int:
    """Writes a profile of five steps; returns their mean time in nanoseconds."""
    between, step = PROGRAMS[name](role)
    return profile_steps(step, directory, between)
