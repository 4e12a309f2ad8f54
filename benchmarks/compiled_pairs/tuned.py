"""Programs that were added to tune rules on; none of them is a test."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from compiled_pairs.program import Array, Program, Role, dense, dense_parameters

_FEATURES = 512


def embedding(role: Role) -> Program:
    """Rows of a large table, gathered, and a layer."""

    def encode(ids: Any, table: Any, parameters: Any) -> Any:
        return dense(parameters, table[ids])

    arguments = (Array((8192,), jnp.int32), Array((65_536, _FEATURES)))
    return Program(encode, (*arguments, dense_parameters(_FEATURES, 2048)), donated=())


def small_table(role: Role) -> Program:
    """Rows of a table of 32, gathered, or by a product with one-hot rows."""

    def encode(ids: Any, table: Any, parameters: Any) -> Any:
        if role == "slow":
            x = table[ids]
        else:
            x = jax.nn.one_hot(ids, table.shape[0], dtype=table.dtype) @ table
        return dense(parameters, x)

    arguments = (Array((8192,), jnp.int32), Array((32, _FEATURES)))
    return Program(encode, (*arguments, dense_parameters(_FEATURES, 2048)), donated=())


def sorted_tokens(role: Role) -> Program:
    """Tokens are ordered by their expert with a sort, or by counting."""
    experts = 16

    def route(x: Any, expert: Any, parameters: Any) -> Any:
        if role == "slow":
            order = jnp.argsort(expert)
        else:
            chosen = jax.nn.one_hot(expert, experts, dtype=jnp.int32)
            place = jnp.sum((jnp.cumsum(chosen, axis=0) - 1) * chosen, axis=1)
            count = jnp.sum(chosen, axis=0)
            place += (jnp.cumsum(count) - count)[expert]
            tokens = jnp.arange(x.shape[0])
            order = jnp.zeros_like(place).at[place].set(tokens, unique_indices=True)
        return dense(parameters, x[order])

    arguments = (Array((16_384, _FEATURES)), Array((16_384,), jnp.int32))
    return Program(route, (*arguments, dense_parameters(_FEATURES, 1024)), donated=())


def swapped_axes(role: Role) -> Program:
    """A result with its axes swapped, or as it is computed."""

    def project(x: Any, weights: Any) -> Any:
        y = jax.nn.gelu(jnp.einsum("btf,fg->btg", x, weights))
        return jnp.swapaxes(y, 0, 1) if role == "slow" else y

    return Program(project, (Array((64, 512, _FEATURES)), Array((_FEATURES, 1024))), donated=())


def stacked_results(role: Role) -> Program:
    """A scan that stacks what each layer computes along the features, or along the layers."""

    def collect(x: Any, weights: Any) -> Any:
        def layer(x: Any, matrix: Any) -> Any:
            x = jnp.tanh(x @ matrix)
            return x, x

        stacked = jax.lax.scan(layer, x, weights)[1]
        return jnp.transpose(stacked, (1, 2, 0)) if role == "slow" else stacked

    return Program(
        collect, (Array((2048, _FEATURES)), Array((8, _FEATURES, _FEATURES))), donated=()
    )


def differences(role: Role) -> Program:
    """All pairs of rows are subtracted and kept, or summed up at once."""

    def compare(x: Any, y: Any, weights: Any) -> Any:
        difference = jnp.abs(x[:, None, :] - y[None, :, :])
        if role == "slow":
            difference = jax.lax.optimization_barrier(difference)
        return jnp.sum(difference * weights, axis=-1, dtype=jnp.float32)

    return Program(compare, (Array((512, 256)), Array((512, 256)), Array((256,))), donated=())


def filtered_tokens(role: Role) -> Program:
    """A mean over a mask by sums."""

    def pool(x: Any, mask: Any, parameters: Any) -> Any:
        x = dense(parameters, x)
        total = jnp.sum(jnp.where(mask[..., None], x, 0), axis=1)
        return total / jnp.sum(mask, axis=1, keepdims=True).astype(x.dtype)

    arguments = (Array((32, 512, _FEATURES)), Array((32, 512), jnp.bool_))
    return Program(pool, (*arguments, dense_parameters(_FEATURES, 2048)), donated=())
