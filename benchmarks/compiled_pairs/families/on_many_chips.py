"""Training on four and eight chips, partitioned by XLA."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from compiled_pairs.families.language import adam, cross_entropy
from compiled_pairs.program import EVERYWHERE, Array, Program, Role, dense, mean_square
from compiled_pairs.sharded import CHIPS

_WIDE = jnp.float32
_ROWS, _COLUMNS = PartitionSpec(CHIPS), PartitionSpec(None, CHIPS)


def _layers(count: int, features: int, hidden: int, up: Any, down: Any, dtype: Any = _WIDE) -> Any:
    layer = {
        "up": Array((features, hidden), dtype, up),
        "down": Array((hidden, features), dtype, down),
    }
    return [layer] * count


def _narrow(p: Any) -> Any:
    return jax.tree.map(lambda w: w.astype(jnp.bfloat16), p)


def whole_logits(role: Role) -> Program:
    """Logits that are split by word are gathered for the loss, or stay split."""

    def loss(head: Any, x: Any, words: Any) -> Any:
        logits = x @ head
        if role == "slow":
            logits = jax.lax.with_sharding_constraint(logits, EVERYWHERE)
        return cross_entropy(logits, words)

    def step(head: Any, x: Any, words: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(head, x, words)
        return head - 0.01 * gradient, value

    arguments = (
        Array((1024, 32_768), spec=_COLUMNS),
        Array((2048, 1024)),
        Array((2048,), jnp.int32),
    )
    return Program(step, arguments, chips=4, is_manual=False)


def split_in_turns(role: Role) -> Program:
    """Activations are split by feature in each layer and by sample between, or always by sample."""

    def predict(x: Any, layers: Any) -> Any:
        for p in layers:
            x = dense(p, x)
            if role == "slow":
                x = jax.lax.with_sharding_constraint(x, PartitionSpec(None, CHIPS))
                x = x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=0, keepdims=True) + 1e-6)
            else:
                x = x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=0, keepdims=True) + 1e-6)
            x = jax.lax.with_sharding_constraint(x, _ROWS)
        return x

    layers = _layers(2, 1024, 4096, EVERYWHERE, EVERYWHERE, jnp.bfloat16)
    return Program(
        predict,
        (Array((4 * 2048, 1024), spec=_ROWS), layers),
        chips=4,
        is_manual=False,
        result=_ROWS,
    )


def state_on_each_chip(role: Role) -> Program:
    """Each of eight chips keeps and updates all of Adam's state, or an eighth of it."""
    state = EVERYWHERE if role == "slow" else _ROWS

    def loss(layers: Any, x: Any) -> Any:
        for p in layers:
            x = dense(_narrow(p), x)
        return mean_square(x)

    layers = _layers(2, 2048, 8192, state, state)
    return adam(loss, layers, Array((8 * 512, 2048), spec=_ROWS), chips=8, is_manual=False)


def split_parameters(role: Role) -> Program:
    """Training with split parameters and a large batch on eight chips."""

    def loss(layers: Any, x: Any) -> Any:
        for p in layers:
            x = dense(_narrow(p), x)
        return mean_square(x)

    layers = _layers(2, 1024, 4096, _ROWS, _ROWS)
    return adam(loss, layers, Array((8 * 16_384, 1024), spec=_ROWS), chips=8, is_manual=False)


def small_parts(role: Role) -> Program:
    """A small layer is split over four chips within each sample, or the samples are split."""
    up, down, rows = (
        (_COLUMNS, _ROWS, EVERYWHERE) if role == "slow" else (EVERYWHERE, EVERYWHERE, _ROWS)
    )

    def predict(x: Any, layers: Any) -> Any:
        for p in layers:
            x = dense(p, x)
        return x

    layers = _layers(3, 512, 2048, up, down, jnp.bfloat16)
    return Program(
        predict, (Array((4096, 512), spec=rows), layers), chips=4, is_manual=False, result=rows
    )
