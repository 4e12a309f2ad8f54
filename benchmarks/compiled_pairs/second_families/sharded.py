"""Training and attention over several chips."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from compiled_pairs.program import Array, Program, Role, descend, mean_square

_WIDE = jnp.float32
_SPLIT = PartitionSpec("chips")


def _loss(p: Any, x: Any) -> Any:
    for layer in p:
        up, down = layer["up"].astype(x.dtype), layer["down"].astype(x.dtype)
        x = x + jax.nn.gelu(x @ up) @ down
    return mean_square(x)


def _layers(count: int, features: int, hidden: int, spec: Any, dtype: Any = _WIDE) -> Any:
    layer = {
        "up": Array((features, hidden), dtype, spec),
        "down": Array((hidden, features), dtype, spec),
    }
    return [layer] * count


def _own(tree: Any) -> Any:
    """Parameters as each chip's own, so that their gradients are not yet summed."""
    return jax.tree.map(lambda x: jax.lax.pcast(x, "chips", to="varying"), tree)


def _whole(tree: Any) -> Any:
    return jax.tree.map(lambda x: jax.lax.all_gather(x, "chips", tiled=True), tree)


def gathered_gradients(role: Role) -> Program:
    """Four chips split parameters by rows and gather them for the step.

    Slow: gradients of all chips are gathered, averaged, and each chip takes its rows.
    Fixed: gradients are reduced and scattered.
    """
    chips, features, hidden = 4, 1024, 4096

    def reduce(gradient: Any) -> Any:
        if role == "fixed":
            return jax.lax.psum_scatter(gradient, "chips", tiled=True) / chips
        mean = jnp.mean(jax.lax.all_gather(gradient, "chips"), axis=0)
        rows = mean.shape[0] // chips
        return jax.lax.dynamic_slice_in_dim(mean, jax.lax.axis_index("chips") * rows, rows)

    def train_step(p: Any, x: Any) -> Any:
        gradients = jax.grad(_loss)(_whole(p), x)
        return descend(p, jax.tree.map(reduce, gradients))

    arguments = (_layers(2, features, hidden, _SPLIT), Array((8192, features), spec=_SPLIT))
    return Program(train_step, arguments, chips=chips, result=_SPLIT)


def copied_optimizer(role: Role) -> Program:
    """A step of Adam on four chips.

    Slow: each chip has parameters and both moments, sums gradients, and updates everything.
    Fixed: each has a quarter of the rows, updates them, and gathers parameters for the step.
    """
    chips, features, hidden = 4, 1024, 4096

    def train_step(state: Any, x: Any) -> Any:
        parameters, means, squares = state
        if role == "slow":
            gradients = jax.grad(_loss)(_own(parameters), x)
            gradients = jax.tree.map(lambda g: jax.lax.psum(g, "chips") / chips, gradients)
        else:
            gradients = jax.grad(_loss)(_whole(parameters), x)
            gradients = jax.tree.map(
                lambda g: jax.lax.psum_scatter(g, "chips", tiled=True) / chips, gradients
            )
        means = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, means, gradients)
        squares = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g * g, squares, gradients)
        parameters = jax.tree.map(
            lambda p, m, s: p - 1e-3 * m / (jnp.sqrt(s) + 1e-8), parameters, means, squares
        )
        return parameters, means, squares

    spec = PartitionSpec() if role == "slow" else _SPLIT
    state = (_layers(4, features, hidden, spec),) * 3
    arguments = (state, Array((4096, features), spec=_SPLIT))
    return Program(train_step, arguments, chips=chips, result=spec)


def separate_reductions(role: Role) -> Program:
    """Gradients of eight matrices are summed over four chips.

    Slow: by one reduction for each. Fixed: by one for all of them, joined to a vector.
    """
    chips, features, hidden = 4, 512, 2048

    def train_step(p: Any, x: Any) -> Any:
        gradients = jax.grad(_loss)(_own(p), x)
        if role == "slow":
            return descend(p, jax.tree.map(lambda g: jax.lax.psum(g, "chips") / chips, gradients))
        flat, tree = jax.tree.flatten(gradients)
        joined = jnp.concatenate([gradient.reshape(-1) for gradient in flat])
        joined = jax.lax.psum(joined, "chips") / chips
        parts, start = [], 0
        for gradient in flat:
            parts.append(joined[start : start + gradient.size].reshape(gradient.shape))
            start += gradient.size
        return descend(p, jax.tree.unflatten(tree, parts))

    arguments = (
        _layers(4, features, hidden, PartitionSpec()),
        Array((16_384, features), spec=_SPLIT),
    )
    return Program(train_step, arguments, chips=chips)


def gathered_heads(role: Role) -> Program:
    """Attention over 4,096 positions split over eight chips, by heads: two on each chip.

    Slow: each chip gathers all heads of all positions and takes its own two, and likewise back.
    Fixed: heads are exchanged for positions, all to all.
    """
    chips, length, heads, width = 8, 4096, 16, 128

    def to_heads(x: Any) -> Any:
        if role == "fixed":
            return jax.lax.all_to_all(x, "chips", split_axis=1, concat_axis=0, tiled=True)
        everything = jax.lax.all_gather(x, "chips", axis=0, tiled=True)
        first = jax.lax.axis_index("chips") * (heads // chips)
        return jax.lax.dynamic_slice_in_dim(everything, first, heads // chips, axis=1)

    def to_positions(x: Any) -> Any:
        if role == "fixed":
            return jax.lax.all_to_all(x, "chips", split_axis=0, concat_axis=1, tiled=True)
        everything = jax.lax.all_gather(x, "chips", axis=1, tiled=True)
        first = jax.lax.axis_index("chips") * (length // chips)
        return jax.lax.dynamic_slice_in_dim(everything, first, length // chips, axis=0)

    def attend(query: Any, key: Any, value: Any) -> Any:
        query, key, value = (to_heads(x) for x in (query, key, value))
        scores = jnp.einsum("qhd,khd->hqk", query, key).astype(_WIDE) * width**-0.5
        weights = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
        return to_positions(jnp.einsum("hqk,khd->qhd", weights, value))

    x = Array((length, heads, width), spec=_SPLIT)
    return Program(attend, (x, x, x), chips=chips, result=_SPLIT)


def data_parallel(role: Role) -> Program:
    """A step on a batch split over eight chips, with large batches, partitioned by XLA, healthy."""

    def train_step(p: Any, x: Any) -> Any:
        value, gradients = jax.value_and_grad(_loss)(p, x)
        return descend(p, gradients), value

    arguments = (
        _layers(2, 1024, 4096, PartitionSpec(), jnp.bfloat16),
        Array((65_536, 1024), spec=_SPLIT),
    )
    return Program(train_step, arguments, chips=8, is_manual=False)
