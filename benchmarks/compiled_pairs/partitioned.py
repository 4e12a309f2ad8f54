"""Programs that XLA partitions over four chips by how their arrays are split."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from compiled_pairs.program import (
    EVERYWHERE,
    Array,
    Program,
    Role,
    dense,
    dense_parameters,
    mean_square,
    training,
)
from compiled_pairs.sharded import CHIPS

_ROWS, _COLUMNS = PartitionSpec(CHIPS), PartitionSpec(None, CHIPS)


def wrong_axis(role: Role) -> Program:
    """Layers that are split by what they contract first, or by what they contract last."""
    up, down = (_ROWS, _COLUMNS) if role == "slow" else (_COLUMNS, _ROWS)

    def predict(x: Any, layers: Any) -> Any:
        for parameters in layers:
            x = dense(parameters, x)
        return x

    layer = {"up": Array((2048, 8192), spec=up), "down": Array((8192, 2048), spec=down)}
    return Program(predict, (Array((4096, 2048)), [layer] * 2), chips=4, is_manual=False)


def whole_batch_on_each_chip(role: Role) -> Program:
    """Each chip computes all of a batch, or its part."""

    def loss(layers: Any, x: Any) -> Any:
        for parameters in layers:
            x = dense(parameters, x)
        return mean_square(x)

    spec = EVERYWHERE if role == "slow" else _ROWS
    program = training(loss, [dense_parameters(1024, 4096)] * 2, Array((8192, 1024), spec=spec))
    return Program(program.step, program.arguments, chips=4, is_manual=False)


def gradients_in_16_bits(role: Role) -> Program:
    """Gradients that are reduced in 32 bits behind other work, or in 16 bits."""

    def train_step(layers: Any, x: Any) -> Any:
        def loss(layers: Any) -> Any:
            y = x
            for parameters in layers:
                y = dense(jax.tree.map(lambda w: w.astype(jnp.bfloat16), parameters), y)
            return mean_square(y)

        gradients = jax.grad(loss)(layers)
        if role == "fixed":
            gradients = jax.tree.map(lambda g: g.astype(jnp.bfloat16), gradients)
        return jax.tree.map(lambda p, g: p - 0.01 * g.astype(p.dtype), layers, gradients)

    layers = [dense_parameters(512, 2048, jnp.float32)] * 2
    arguments = (layers, Array((4 * 32_768, 512), spec=_ROWS))
    return Program(train_step, arguments, chips=4, is_manual=False)
