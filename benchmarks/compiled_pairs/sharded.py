"""Training on the four chips of a board."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from compiled_pairs.program import (
    Array,
    Program,
    Role,
    dense,
    dense_parameters,
    descend,
    mean_square,
)

CHIPS = "chips"
_SPLIT, _SPLIT_SECOND = PartitionSpec(CHIPS), PartitionSpec(None, CHIPS)
_OVERLAP = {
    "xla_tpu_enable_async_collective_fusion": "true",
    "xla_tpu_enable_async_collective_fusion_multiple_steps": "true",
    "xla_tpu_overlap_compute_collective_tc": "true",
    "xla_enable_async_all_gather": "true",
    "xla_enable_async_collective_permute": "true",
}


def _loss(layers: Any, x: Any) -> Any:
    for parameters in layers:
        x = dense(parameters, x)
    return mean_square(x)


def late_all_reduce(role: Role) -> Program:
    """All gradients are reduced in 32 bits after the backward pass, or layer by layer in 16."""

    def train_step(layers: Any, x: Any) -> Any:
        gradients = jax.grad(_loss)(layers, x)
        if role == "slow":
            gradients = jax.tree.map(lambda g: g.astype(jnp.float32), gradients)
            gradients = jax.lax.optimization_barrier(gradients)
        gradients = jax.tree.map(lambda g: jax.lax.pmean(g, CHIPS), gradients)
        return descend(layers, gradients)

    arguments = ([dense_parameters(512, 2048)] * 2, Array((4 * 2048, 512), spec=_SPLIT))
    return Program(train_step, arguments, chips=4, options=_OVERLAP if role == "fixed" else {})


def reduce_each_micro_batch(role: Role) -> Program:
    """Gradients are reduced after each of four micro-batches, or after the last."""

    def train_step(layers: Any, x: Any) -> Any:
        def accumulate(total: Any, micro_batch: Any) -> Any:
            gradients = jax.grad(_loss)(layers, micro_batch)
            if role == "slow":
                gradients = jax.tree.map(lambda g: jax.lax.pmean(g, CHIPS), gradients)
            return jax.tree.map(jnp.add, total, gradients), None

        zeros = jax.tree.map(jnp.zeros_like, layers)
        micro_batches = x.reshape(4, -1, x.shape[-1])
        gradients, _ = jax.lax.scan(accumulate, zeros, micro_batches)
        if role == "fixed":
            gradients = jax.tree.map(lambda g: jax.lax.pmean(g, CHIPS), gradients)
        return descend(layers, gradients)

    arguments = ([dense_parameters(512, 2048)], Array((4 * 8192, 512), spec=_SPLIT))
    return Program(train_step, arguments, chips=4)


def gathered_weights(role: Role) -> Program:
    """Weights are gathered when a layer needs them, or ahead of time."""

    def predict(x: Any, layers: Any) -> Any:
        for parameters in layers:
            if role == "slow":
                x, parameters = jax.lax.optimization_barrier((x, parameters))
            whole = {
                name: jax.lax.all_gather(weights, CHIPS, axis=0, tiled=True)
                for name, weights in parameters.items()
            }
            if role == "slow":
                x, whole = jax.lax.optimization_barrier((x, whole))
            x = dense(whole, x)
        return x

    layer = {
        "up": Array((1024, 4096), spec=_SPLIT),
        "down": Array((4096, 1024), spec=_SPLIT),
    }
    x = Array((4 * 2048, 1024), spec=_SPLIT)
    options = _OVERLAP if role == "fixed" else {}
    return Program(predict, (x, [layer] * 2), chips=4, result=_SPLIT, options=options)


def tensor_parallel_in_32_bits(role: Role) -> Program:
    """Partial sums of split layers are reduced in 32 bits, or in 16."""
    dtype = jnp.float32 if role == "slow" else jnp.bfloat16

    def predict(x: Any, layers: Any) -> Any:
        for parameters in layers:
            hidden = jax.nn.gelu(x @ parameters["up"])
            partial = jnp.matmul(hidden, parameters["down"], preferred_element_type=dtype)
            x = x + jax.lax.psum(partial, CHIPS).astype(x.dtype)
        return x

    layer = {
        "up": Array((1024, 4096), spec=_SPLIT_SECOND),
        "down": Array((4096, 1024), spec=_SPLIT),
    }
    return Program(predict, (Array((4096, 1024)), [layer] * 2), chips=4)


def sharded_training(role: Role) -> Program:
    """A batch that is large enough to hide the reduction of the gradients."""

    def train_step(layers: Any, x: Any) -> Any:
        gradients = jax.grad(_loss)(layers, x)
        gradients = jax.tree.map(lambda g: jax.lax.pmean(g, CHIPS), gradients)
        return descend(layers, gradients)

    arguments = ([dense_parameters(512, 2048)], Array((4 * 32_768, 512), spec=_SPLIT))
    return Program(train_step, arguments, chips=4, options=_OVERLAP)
