"""Programs that were added to tune rules on; none of them is a test."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from compiled_pairs import products
from compiled_pairs.convolutions import convolve, kernel
from compiled_pairs.program import (
    Array,
    Program,
    Role,
    dense,
    dense_parameters,
    mean_square,
    training,
)

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


def head_major_keys(role: Role) -> Program:
    """Keys by position and head, or by head and position, as attention reads them."""

    def project(x: Any, weights: Any) -> Any:
        order = "bshd" if role == "slow" else "bhsd"
        return [jnp.einsum(f"bsm,mhd->{order}", x, weights[name]) for name in ("key", "value")]

    weights = {name: Array((1024, 8, 128)) for name in ("key", "value")}
    return Program(project, (Array((8, 1024, 1024)), weights), donated=())


def time_major(role: Role) -> Program:
    """A recurrence over arrays whose first dimension is the batch, or the time."""

    def recurrence(x: Any, weights: Any) -> Any:
        def step(state: Any, row: Any) -> Any:
            state = jnp.tanh(row + state @ weights)
            return state, state

        if role == "slow":
            x = jnp.swapaxes(x, 0, 1)
        start = jnp.zeros(x.shape[1:], x.dtype)
        states = jax.lax.scan(step, start, x, unroll=8)[1]
        return jnp.swapaxes(states, 0, 1) if role == "slow" else states

    shape = (128, 256, 512) if role == "slow" else (256, 128, 512)
    return Program(recurrence, (Array(shape), Array((512, 512))), donated=())


def sequences_by_sample(role: Role) -> Program:
    """A recurrence reads sequences by sample and time, or by time and sample."""

    def encode(x: Any, weights: Any) -> Any:
        def step(state: Any, row: Any) -> Any:
            return jnp.tanh(jnp.concatenate([row, state], axis=-1) @ weights), None

        if role == "slow":
            x = jnp.swapaxes(x, 0, 1)
        return jax.lax.scan(step, jnp.zeros((x.shape[1], 1024), x.dtype), x)[0]

    shape = (64, 512, 1024) if role == "slow" else (512, 64, 1024)
    return Program(encode, (Array(shape), Array((2048, 1024))), donated=())


def transposed_input(role: Role) -> Program:
    """Features by sample and sample by feature, which the program transposes."""

    def project(x: Any, weights: Any) -> Any:
        x = jnp.swapaxes(x, 0, 1) if role == "slow" else x
        return jax.nn.gelu(jax.nn.softmax(x.astype(jnp.float32)).astype(x.dtype) @ weights)

    shape = (1024, 16_384) if role == "slow" else (16_384, 1024)
    return Program(project, (Array(shape), Array((1024, 256))), donated=())


def transposed_layers(role: Role) -> Program:
    """Training of weights that are stored as (outputs, inputs), or as (inputs, outputs)."""

    def loss(layers: Any, x: Any) -> Any:
        for weights in layers:
            x = jax.nn.relu(x @ (weights.T if role == "slow" else weights))
        return mean_square(x)

    return training(loss, [Array((1024, 1024), jnp.float32)] * 4, Array((512, 1024)))


def overlapping_pool(role: Role) -> Program:
    """Training with maximum pooling of overlapping windows, or with average pooling."""

    def pool(x: Any) -> Any:
        window, strides = (1, 3, 3, 1), (1, 2, 2, 1)
        if role == "slow":
            return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, strides, "SAME")
        return jax.lax.reduce_window(x, 0.0, jax.lax.add, window, strides, "SAME") / 9

    def loss(parameters: Any, x: Any) -> Any:
        x = pool(jax.nn.relu(convolve(x, parameters["first"])))
        return mean_square(convolve(x, parameters["second"]))

    parameters = {"first": kernel(3, 128, 128), "second": kernel(3, 128, 128)}
    return training(loss, parameters, Array((16, 32, 32, 128)))


def ranked_scores(role: Role) -> Program:
    """The best items by a sort of all scores, or by their maximum."""

    def rank(x: Any, items: Any) -> Any:
        scores = jnp.matmul(x, items, preferred_element_type=jnp.float32)
        if role == "slow":
            order = jnp.argsort(scores, axis=-1)[:, -8:]
            return jnp.take_along_axis(scores, order, axis=-1), order
        return jax.lax.approx_max_k(scores, 8)

    return Program(rank, (Array((256, 512)), Array((512, 8192))), donated=())


def clipped_at_quantile(role: Role) -> Program:
    """Activations are clipped at a quantile of each row, or at a multiple of their deviation."""

    def encode(x: Any, parameters: Any) -> Any:
        x = dense(parameters, x)
        sizes = jnp.abs(x).astype(jnp.float32)
        if role == "slow":
            limit = jnp.sort(sizes, axis=-1)[:, -52:-51]
        else:
            limit = 2.5 * jnp.sqrt(jnp.mean(jnp.square(sizes), axis=-1, keepdims=True))
        return jnp.clip(x, -limit.astype(x.dtype), limit.astype(x.dtype))

    arguments = (Array((8192, _FEATURES)), dense_parameters(_FEATURES, 2048))
    return Program(encode, arguments, donated=())


def rows_in_loop(role: Role) -> Program:
    """A loop that looks up a row of a table for each sample, or all rows before it."""

    def run(table: Any, ids: Any, weights: Any) -> Any:
        def step(state: Any, value: Any) -> Any:
            rows = table[value] if role == "slow" else value
            return jnp.tanh(state @ weights + rows), None

        values = ids if role == "slow" else table[ids]
        start = jnp.zeros((ids.shape[1], table.shape[1]), table.dtype)
        return jax.lax.scan(step, start, values)[0]

    arguments = (Array((16_384, 256)), Array((256, 64), jnp.int32), Array((256, 256)))
    return Program(run, arguments, donated=())


def tiny_trips(role: Role) -> Program:
    """A loop of many small trips, or of an eighth as many."""

    def run(values: Any, weights: Any) -> Any:
        def step(state: Any, value: Any) -> Any:
            return jnp.tanh(state @ weights + value), None

        start = jnp.zeros(values.shape[1:], values.dtype)
        return jax.lax.scan(step, start, values, unroll=1 if role == "slow" else 8)[0]

    return Program(run, (Array((256, 64, 256)), Array((256, 256))), donated=())


def scanned_blocks(role: Role) -> Program:
    """Training of twelve layers in a scan, or of three in each of its steps."""

    def loss(stacked: Any, x: Any) -> Any:
        def layer(x: Any, parameters: Any) -> Any:
            return dense(parameters, x), None

        return mean_square(jax.lax.scan(layer, x, stacked, unroll=1 if role == "slow" else 3)[0])

    parameters = {"up": Array((12, 256, 1024)), "down": Array((12, 1024, 256))}
    return training(loss, parameters, Array((2048, 256)))


def expanded_product(role: Role) -> Program:
    """A product by expanding a factor and summing, or by einsum."""

    def score(x: Any, weights: Any) -> Any:
        if role == "slow":
            return jnp.sum(x[:, None, :] * weights[None, :, :], axis=-1, dtype=jnp.float32)
        return jnp.einsum("if,of->io", x, weights, preferred_element_type=jnp.float32)

    return Program(score, (Array((1024, 384)), Array((1024, 384))), donated=())


def recomputed_attention(role: Role) -> Program:
    """Attention whose backward pass computes it again, or keeps its weights."""

    def attention(x: Any, weights: Any) -> Any:
        q, k, v = (jnp.einsum("bsm,mhd->bhsd", x, weights[name]) for name in "qkv")
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k).astype(jnp.float32)
        mixed = jnp.einsum("bhqk,bhkd->bqhd", jax.nn.softmax(scores).astype(x.dtype), v)
        return x + jnp.einsum("bqhd,hdm->bqm", mixed, weights["o"])

    def loss(layers: Any, x: Any) -> Any:
        layer = jax.checkpoint(attention) if role == "slow" else attention
        for weights in layers:
            x = layer(x, weights)
        return mean_square(x)

    weights = {name: Array((512, 4, 128)) for name in "qkv"} | {"o": Array((4, 128, 512))}
    return training(loss, [weights] * 2, Array((8, 512, 512)))


def nearest_codes(role: Role) -> Program:
    """The nearest of some codes by differences of all pairs, or by products."""

    def quantize(x: Any, codes: Any) -> Any:
        if role == "slow":
            difference = x[:, None, :] - codes[None, :, :]
            distance = jnp.sum(jnp.square(difference), axis=-1, dtype=jnp.float32)
        else:
            squares = jnp.sum(jnp.square(codes), axis=-1, dtype=jnp.float32)
            products = jnp.matmul(x, codes.T, preferred_element_type=jnp.float32)
            distance = squares - 2 * products
        return jnp.argmin(distance, axis=-1)

    return Program(quantize, (Array((4096, 128)), Array((1024, 128))), donated=())


def wide_activations(role: Role) -> Program:
    """Normalized and gated activations in 32 bits, or in 16."""
    dtype = jnp.float32 if role == "slow" else jnp.bfloat16

    def normalize(x: Any) -> Any:
        x32 = x.astype(jnp.float32)
        scale = jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + 1e-6)
        return (x32 * scale).astype(x.dtype)

    def mix(x: Any, gates: Any) -> Any:
        for gate in gates:
            x = x + normalize(x) * jax.nn.sigmoid(gate)
            x = jax.lax.optimization_barrier(x)
        return x

    shape = (16_384, 1024)
    return Program(mix, (Array(shape, dtype), [Array(shape, dtype)] * 3))


def wide_attention(role: Role) -> Program:
    """Attention of one layer on arrays in 32 bits, or in 16."""
    dtype = jnp.float32 if role == "slow" else jnp.bfloat16

    def encode(x: Any, parameters: Any) -> Any:
        return products.attention(parameters, x)

    parameters = products.attention_parameters(512, 4, 128, dtype)
    return Program(encode, (Array((4, 512, 512), dtype), parameters))


def greedy_tokens(role: Role) -> Program:
    """Words are chosen one by one, and each is looked up for the next."""

    def generate(state: Any, table: Any, weights: Any, head: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            state, token = carry
            state = jnp.tanh(state @ weights + table[token])
            token = jnp.argmax(state @ head, axis=-1)
            return (state, token), token

        start = state, jnp.zeros(state.shape[:1], jnp.int32)
        return jax.lax.scan(step, start, None, length=64)[1]

    arguments = (Array((32, 512)), Array((8192, 512)), Array((512, 512)), Array((512, 8192)))
    return Program(generate, arguments, donated=())
