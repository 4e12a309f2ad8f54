"""JAX programs whose calls cost time: fetches, compilations and many tiny calls."""

from __future__ import annotations

import os
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

from recorded_pairs.intervals import every, interval

_CALLS = 151
_UNMARKED = ("jax-new-lengths",)
"""Recorded from the first call on, without step markers."""
_UNMARKED_CALLS = 8


def _weights(*sizes: int) -> list[Any]:
    keys = jax.random.split(jax.random.key(0), len(sizes))
    shapes = zip(keys, pairwise(sizes), strict=False)
    return [0.05 * jax.random.normal(key, shape) for key, shape in shapes]


def _loss(weights: list[Any], batch: Any) -> Any:
    hidden = batch
    for weight in weights:
        hidden = jnp.tanh(hidden @ weight)
    return jnp.mean(jnp.square(hidden))


def _update(weights: list[Any], batch: Any) -> tuple[list[Any], Any]:
    loss, slopes = jax.value_and_grad(_loss)(weights, batch)
    return [value - 0.01 * slope for value, slope in zip(weights, slopes, strict=True)], loss


def fetch(role: Role) -> Callable[[], None]:
    """Fetches the loss and all weights in each step, or rarely.

    Both variants wait for the loss of the step before, so that no step runs far ahead.
    """
    weights, batch = _weights(*[48] * 61), jnp.ones((64, 48))
    update = jax.jit(_update)
    loss = before = jnp.zeros(())
    history: list[float] = []

    def read() -> None:
        history.append(float(loss))
        jax.device_get(weights)

    rarely = every(interval(role), read)

    def step() -> None:
        nonlocal weights, loss, before
        before, (weights, loss) = loss, update(weights, batch)
        rarely()
        jax.block_until_ready(before)

    return step


def new_lengths(role: Role) -> Callable[[], None]:
    """Batches of a new length in each step, or of a single length."""
    weights, number = _weights(256, 512, 512, 256), 0
    update = jax.jit(_update)

    def step() -> None:
        nonlocal weights, number
        number += 1
        length = 512 - 4 * number if role == "slow" else 512
        weights, _ = update(weights, np.ones((length, 256), np.float32))
        jax.block_until_ready(weights)

    return step


def tiny_lambdas(role: Role) -> Callable[[], None]:
    """Corrections of a small state, each a jitted lambda, or all in one program."""
    return _tiny(role, [_lambda(number) for number in range(_CALLS)])


def tiny_functions(role: Role) -> Callable[[], None]:
    """Corrections of a small state, each a jitted function with a name, or all in one program."""
    return _tiny(role, [_named(number) for number in range(_CALLS)])


def _lambda(number: int) -> Callable[[Any], Any]:
    return lambda state: jnp.tanh(state + 1e-3 * number)


def _named(number: int) -> Callable[[Any], Any]:
    def correct(state: Any) -> Any:
        return jnp.tanh(state + 1e-3 * number)

    correct.__name__ = f"correct_{number}"
    return correct


def _tiny(role: Role, corrections: list[Callable[[Any], Any]]) -> Callable[[], None]:
    weights, batch = _weights(128, 256, 256, 128), jnp.ones((192, 128))
    state = jnp.ones((32, 32))
    jitted = [jax.jit(correction) for correction in corrections]

    def update(weights: list[Any], state: Any) -> list[Any]:
        return _update(weights, batch * jnp.mean(state))[0]

    def correct_and_update(weights: list[Any], state: Any) -> tuple[list[Any], Any]:
        for correction in corrections:
            state = correction(state)
        return update(weights, state), state

    update_alone, all_at_once = jax.jit(update), jax.jit(correct_and_update)

    def step() -> None:
        nonlocal weights, state
        if role == "fixed":
            weights, state = all_at_once(weights, state)
        else:
            for correction in jitted:
                state = correction(state)
            weights = update_alone(weights, state)
        jax.block_until_ready(weights)

    return step


PROGRAMS: dict[str, Callable[[Role], Callable[[], None]]] = {
    "jax-fetch": fetch,
    "jax-new-lengths": new_lengths,
    "jax-tiny-lambdas": tiny_lambdas,
    "jax-tiny-functions": tiny_functions,
}


def measure(name: str, role: Role) -> int:
    """Mean step time without the profiler, in nanoseconds."""
    return mean_step_ns(PROGRAMS[name](role))


def record(name: str, role: Role, directory: Path) -> int:
    """Writes a profile; returns the mean time of a recorded step in nanoseconds."""
    step = PROGRAMS[name](role)
    if name in _UNMARKED:
        return _profile_calls(step, directory)
    return profile_steps(step, directory)


def _profile_calls(step: Callable[[], object], directory: Path) -> int:
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # as in `profile_steps`
    with jax.profiler.trace(str(directory), profiler_options=options):
        start_ns = time.perf_counter_ns()
        for _ in range(_UNMARKED_CALLS):
            step()
        return (time.perf_counter_ns() - start_ns) // _UNMARKED_CALLS
