"""JAX training over four virtual devices."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jax_profile import profile_steps
from pairs import Role, mean_step_ns

_MICRO_BATCHES = 8


def _loss(weights: Any, inputs: Any) -> Any:
    return jnp.mean(jnp.square(jnp.tanh(inputs @ weights)))


def _update(role: Role, weights: Any, inputs: Any) -> Any:
    """Adds up the gradients of the micro-batches, over all devices."""
    total = jnp.zeros_like(weights)
    for micro_batch in jnp.split(inputs, _MICRO_BATCHES):
        gradient = jax.grad(_loss)(weights, micro_batch)
        total += jax.lax.psum(gradient, "data") if role == "slow" else gradient
    if role == "fixed":
        total = jax.lax.psum(total, "data")
    return weights - 0.01 * total


def all_reduce(role: Role) -> Callable[[], None]:
    """The step of data-parallel training with accumulated gradients."""
    mesh = Mesh(jax.devices(), ("data",))
    everywhere, split = PartitionSpec(), PartitionSpec("data")
    update = jax.jit(
        jax.shard_map(
            partial(_update, role),
            mesh=mesh,
            in_specs=(everywhere, split),
            out_specs=everywhere,
            check_vma=False,
        )
    )
    weights = jnp.full((1024, 1024), 0.01)
    inputs = jnp.ones((4 * _MICRO_BATCHES * 8, 1024))

    def step() -> None:
        nonlocal weights
        weights = jax.block_until_ready(update(weights, inputs))

    return step


def measure(name: str, role: Role) -> int:
    """Mean step time without the profiler, in nanoseconds."""
    return mean_step_ns(all_reduce(role))


def record(name: str, role: Role, directory: Path) -> int:
    """Writes a profile of five steps; returns their mean time in nanoseconds."""
    return profile_steps(all_reduce(role), directory)
