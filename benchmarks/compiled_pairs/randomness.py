"""Programs that draw random numbers: by the default generator, or by the chip's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from compiled_pairs.program import (
    Array,
    Program,
    Role,
    dense,
    dense_parameters,
    mean_square,
    training,
)


def _generator(role: Role) -> tuple[str, Array]:
    """The name of a generator, and its seed."""
    if role == "slow":
        return "threefry2x32", Array((2,), jnp.uint32)
    return "rbg", Array((4,), jnp.uint32)


def _with_noise(role: Role, change: Callable[[Any, Any], Any]) -> Program:
    """Training of layers after each of which something random happens."""
    generator, seed = _generator(role)

    def loss(layers: Any, x: Any, seed: Any) -> Any:
        keys = jax.random.split(jax.random.wrap_key_data(seed, impl=generator), len(layers))
        for number, parameters in enumerate(layers):
            x = change(keys[number], dense(parameters, x))
        return mean_square(x)

    return training(loss, [dense_parameters(512, 2048)], Array((16_384, 512)), seed)


def normal_noise(role: Role) -> Program:
    """Normal noise is added to activations."""
    return _with_noise(role, lambda key, x: x + jax.random.normal(key, x.shape, x.dtype))


def dropout(role: Role) -> Program:
    """A tenth of the activations is dropped."""
    return _with_noise(
        role,
        lambda key, x: jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x / 0.9, 0).astype(
            x.dtype
        ),
    )


def categorical(role: Role) -> Program:
    """Words are sampled from their logits."""
    generator, seed = _generator(role)

    def sample(x: Any, head: Any, seed: Any) -> Any:
        logits = jnp.matmul(x, head, preferred_element_type=jnp.float32)
        return jax.random.categorical(jax.random.wrap_key_data(seed, impl=generator), logits)

    return Program(sample, (Array((1024, 1024)), Array((1024, 32_768)), seed), donated=())
