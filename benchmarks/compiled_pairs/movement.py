"""Programs that move elements: sorts, gathers, slices, loops and changes of layout."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from compiled_pairs.program import (
    Array,
    Program,
    Role,
    dense,
    dense_parameters,
    descend,
    mean_square,
    training,
)


def sort_in_step(role: Role) -> Program:
    """Gradients are clipped at their median, which sorts them, or by their mean."""

    def loss(parameters: Any, x: Any) -> Any:
        return mean_square(dense(parameters, x))

    def train_step(parameters: Any, x: Any) -> Any:
        gradients = jax.grad(loss)(parameters, x)
        sizes = jnp.abs(gradients["up"]).ravel().astype(jnp.float32)
        limit = jnp.sort(sizes)[sizes.size // 2] if role == "slow" else jnp.mean(sizes)
        clipped = jax.tree.map(lambda g: jnp.clip(g, -limit, limit), gradients)
        return descend(parameters, clipped)

    return Program(train_step, (dense_parameters(512, 2048), Array((8192, 512))))


def top_k_by_sort(role: Role) -> Program:
    """The likeliest words by a full sort, or by an approximate maximum."""

    def sample(x: Any, head: Any) -> Any:
        logits = jnp.matmul(x, head, preferred_element_type=jnp.float32)
        if role == "slow":
            order = jnp.argsort(logits, axis=-1, descending=True)[:, :64]
            return jnp.take_along_axis(logits, order, axis=-1), order
        return jax.lax.approx_max_k(logits, 64)

    return Program(sample, (Array((64, 2048)), Array((2048, 32_768))), donated=())


def random_permutation(role: Role) -> Program:
    """Rows are shuffled by sorting in each step, or by a cyclic shift."""

    def loss(parameters: Any, x: Any) -> Any:
        return mean_square(dense(parameters, x))

    def train_step(parameters: Any, x: Any, seed: Any) -> Any:
        key = jax.random.wrap_key_data(seed, impl="threefry2x32")
        x = jax.random.permutation(key, x, axis=0) if role == "slow" else jnp.roll(x, 1, axis=0)
        return descend(parameters, jax.grad(loss)(parameters, x))

    arguments = (dense_parameters(256, 512), Array((65_536, 256)), Array((2,), jnp.uint32))
    return Program(train_step, arguments)


def transposed_cache(role: Role) -> Program:
    """Keys and values are stored with their dimensions in another order, or as computed."""

    def prefill(x: Any, weights: Any) -> Any:
        stored = []
        for name in ("key", "value"):
            computed = jnp.einsum("bsm,mhd->bshd", x, weights[name])
            stored.append(jnp.transpose(computed, (0, 2, 3, 1)) if role == "slow" else computed)
        return stored

    weights = {name: Array((512, 16, 128)) for name in ("key", "value")}
    return Program(prefill, (Array((16, 2048, 512)), weights), donated=())


def stacked_layers(role: Role) -> Program:
    """A scan over layers that stacks their gradients, or an unrolled one."""
    layers = 4

    def loss(stacked: Any, x: Any) -> Any:
        def layer(x: Any, parameters: Any) -> Any:
            return dense(parameters, x), None

        x, _ = jax.lax.scan(layer, x, stacked, unroll=1 if role == "slow" else layers)
        return mean_square(x)

    parameters = {"up": Array((layers, 512, 2048)), "down": Array((layers, 2048, 512))}
    return training(loss, parameters, Array((1024, 512)))


def undonated_cache(role: Role) -> Program:
    """A cache that is copied in each step because it is not donated, or updated in place."""

    def decode(caches: Any, x: Any, position: Any, layers: Any) -> Any:
        updated = []
        for cache, parameters in zip(caches, layers, strict=True):
            row = (x @ parameters["key"])[:, None, :]
            cache = jax.lax.dynamic_update_slice(cache, row, (0, position, 0))
            scores = jnp.einsum("bm,bsm->bs", x, cache).astype(jnp.float32)
            x = x + jnp.einsum("bs,bsm->bm", jax.nn.softmax(scores).astype(x.dtype), cache)
            updated.append(cache)
        return updated, x

    cache, count = Array((16, 4096, 1024)), 2
    layers = [{"key": Array((1024, 1024))}] * count
    arguments = ([cache] * count, Array((16, 1024)), Array((), jnp.int32), layers)
    return Program(decode, arguments, donated=() if role == "slow" else (0,))


def ragged_reshape(role: Role) -> Program:
    """Features are split into pieces of 100, or of 128."""
    pieces, size = 32, 100 if role == "slow" else 128

    def mix(x: Any, weights: Any) -> Any:
        for matrix in weights:
            split = x.reshape(x.shape[0], pieces, size)
            split = jax.nn.softmax(split.astype(jnp.float32), axis=-1).astype(x.dtype)
            x = split.reshape(x.shape) + x * (x @ matrix)[:, :1]
        return x

    features = pieces * size
    return Program(mix, (Array((4096, features)), [Array((features, 128))] * 2))


def scan_of_tiny_steps(role: Role) -> Program:
    """A recurrence of 512 tiny steps, or of 64 that each do eight."""

    def recurrence(x: Any, weights: Any) -> Any:
        def step(state: Any, row: Any) -> Any:
            state = jnp.tanh(row + state @ weights)
            return state, state

        start = jnp.zeros(x.shape[1:], x.dtype)
        return jax.lax.scan(step, start, x, unroll=1 if role == "slow" else 8)[1]

    return Program(recurrence, (Array((512, 8, 128)), Array((128, 128))), donated=())


def scatter_add(role: Role) -> Program:
    """Gradients of a table at random rows, or at rows in order without repetitions."""
    is_ordered = role == "fixed"

    def update(table: Any, ids: Any, x: Any, parameters: Any) -> Any:
        rows = dense(parameters, x).astype(table.dtype)
        return table.at[ids].add(rows, indices_are_sorted=is_ordered, unique_indices=is_ordered)

    table = Array((65_536, 256), jnp.float32)
    arguments = (table, Array((16_384,), jnp.int32), Array((16_384, 256)))
    return Program(update, (*arguments, dense_parameters(256, 1024)))


def gather_in_loop(role: Role) -> Program:
    """Rows are gathered one by one in a loop, or all at once before it."""

    def run(table: Any, ids: Any, weights: Any) -> Any:
        def step(state: Any, value: Any) -> Any:
            row = jax.lax.dynamic_slice(table, (value, 0), (1, 512)) if role == "slow" else value
            return jnp.tanh(state @ weights + row), None

        start = jnp.zeros((1, 512), table.dtype)
        values = ids if role == "slow" else table[ids][:, None]
        return jax.lax.scan(step, start, values)[0]

    arguments = (Array((32_768, 512)), Array((512,), jnp.int32), Array((512, 512)))
    return Program(run, arguments, donated=())


def elementwise_130(role: Role) -> Program:
    """Element-wise work on 130 by 130, or 128 by 128."""
    size = 130 if role == "slow" else 128

    def scale(x: Any, y: Any) -> Any:
        return jnp.tanh(x) * y + x

    return Program(scale, (Array((4096, size, size)), Array((4096, size, size))), donated=())


def slices_of_100(role: Role) -> Program:
    """Slices of 100 of a dimension, or of 128."""
    size = 100 if role == "slow" else 128

    def mix(x: Any) -> Any:
        parts = [jax.lax.dynamic_slice_in_dim(x, size * part, size, 1) for part in range(8)]
        return sum(jnp.tanh(part) for part in parts)

    return Program(mix, (Array((32_768, 8 * size)),), donated=())


def tiny_trailing_dimension(role: Role) -> Program:
    """Element-wise work on arrays that end in 8 by 10, or in 8 by 16."""
    size = 10 if role == "slow" else 16

    def scale(x: Any, y: Any) -> Any:
        return jax.nn.sigmoid(x) * y

    shape = (65_536, 8, size)
    return Program(scale, (Array(shape), Array(shape)), donated=())
