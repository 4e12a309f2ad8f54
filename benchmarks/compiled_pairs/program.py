"""A program to compile: its step, and the shapes of the arrays that it gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

Role = Literal["slow", "fixed"]

EVERYWHERE = PartitionSpec()
"""Each chip has all of an array."""


@dataclass(frozen=True, slots=True)
class Array:
    """An array that a step gets."""

    shape: tuple[int, ...]
    dtype: Any = jnp.bfloat16
    spec: PartitionSpec = EVERYWHERE
    """How it is split over the axis `chips`."""


@dataclass(frozen=True, slots=True)
class Program:
    """A step on one chip, or on all four of a board."""

    step: Callable[..., Any]
    arguments: tuple[Any, ...]
    """Trees of `Array`."""
    donated: tuple[int, ...] = (0,)
    """Arguments whose memory the results reuse."""
    chips: int = 1
    is_manual: bool = True
    """Whether the step on several chips is written for one of them; else XLA partitions it."""
    result: PartitionSpec = EVERYWHERE
    """How the results are split over the chips."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of the compiler."""


def training(
    loss: Callable[..., Any], parameters: Any, *batch: Any, options: Mapping[str, str] | None = None
) -> Program:
    """A step of stochastic gradient descent.

    Args:
        loss: A function of the parameters and the batch.
        parameters: A tree of `Array`.
        batch: Trees of `Array`.
        options: Options of the compiler.
    """

    def train_step(parameters: Any, *batch: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(parameters, *batch)
        return descend(parameters, gradients), value

    return Program(train_step, (parameters, *batch), options=options or {})


def descend(parameters: Any, gradients: Any) -> Any:
    """The parameters after a step of gradient descent."""
    return jax.tree.map(
        lambda parameter, gradient: parameter - (0.01 * gradient).astype(parameter.dtype),
        parameters,
        gradients,
    )


def dense(parameters: Any, x: Any, precision: Any = None) -> Any:
    """A feed-forward layer with a residual connection."""
    hidden = jax.nn.gelu(jnp.matmul(x, parameters["up"], precision=precision))
    return x + jnp.matmul(hidden, parameters["down"], precision=precision)


def dense_parameters(features: int, hidden: int, dtype: Any = jnp.bfloat16) -> dict[str, Array]:
    """The weights of a feed-forward layer."""
    return {"up": Array((features, hidden), dtype), "down": Array((hidden, features), dtype)}


def mean_square(x: Any) -> Any:
    """A loss in 32 bits."""
    return jnp.mean(jnp.square(x.astype(jnp.float32)))
