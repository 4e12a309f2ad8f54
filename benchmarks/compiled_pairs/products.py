"""Matrix products and attention: shapes, precision, and products that need not be."""

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
    mean_square,
    training,
)

_FEATURES = 1024


def attention(parameters: Any, x: Any, precision: Any = None) -> Any:
    """Multi-head attention with a residual connection; `x` is (batch, sequence, features)."""
    query, key, value = (
        jnp.einsum("bsm,mhd->bhsd", x, parameters[name], precision=precision) for name in "qkv"
    )
    scores = jnp.einsum("bhqd,bhkd->bhqk", query, key, precision=precision)
    scores = scores.astype(jnp.float32) * query.shape[-1] ** -0.5
    weights = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
    mixed = jnp.einsum("bhqk,bhkd->bhqd", weights, value, precision=precision)
    return x + jnp.einsum("bhsd,hdm->bsm", mixed, parameters["o"], precision=precision)


def attention_parameters(features: int, heads: int, width: int, dtype: Any = jnp.bfloat16) -> Any:
    """The weights of an attention layer."""
    into = {name: Array((features, heads, width), dtype) for name in "qkv"}
    return {**into, "o": Array((heads, width, features), dtype)}


def _encoder(length: int, heads: int, width: int) -> Program:
    """A layer of attention, without training."""

    def encode(x: Any, layers: Any) -> Any:
        for parameters in layers:
            x = attention(parameters, x)
        return x

    layers = [attention_parameters(_FEATURES, heads, width)]
    return Program(encode, (Array((4, length, _FEATURES)), layers))


def attention_513(role: Role) -> Program:
    """A sequence that is one longer than whole tiles."""
    return _encoder(513 if role == "slow" else 512, 16, 64)


def attention_1000(role: Role) -> Program:
    """A sequence that could be padded to whole tiles."""
    return _encoder(1000 if role == "slow" else 1024, 16, 64)


def heads_of_64(role: Role) -> Program:
    """Sixteen heads of 64, or eight of 128."""
    return _encoder(1024, 16, 64) if role == "slow" else _encoder(1024, 8, 128)


def _feed_forward(batch: int) -> Program:
    def predict(x: Any, layers: Any) -> Any:
        for parameters in layers:
            x = dense(parameters, x)
        return x

    return Program(predict, (Array((batch, 2048)), [dense_parameters(2048, 8192)] * 2))


def batch_1(role: Role) -> Program:
    """A batch of one, or of eight."""
    return _feed_forward(1 if role == "slow" else 8)


def batch_9(role: Role) -> Program:
    """A batch of nine, or of sixteen."""
    return _feed_forward(9 if role == "slow" else 16)


def highest_precision(role: Role) -> Program:
    """32-bit products in six passes, or in one."""
    precision = jax.lax.Precision.HIGHEST if role == "slow" else None

    def loss(layers: Any, x: Any) -> Any:
        for parameters in layers:
            x = dense(parameters, x, precision)
        return mean_square(x)

    layers = [dense_parameters(512, 2048, jnp.float32)]
    return training(loss, layers, Array((2048, 512), jnp.float32))


def highest_attention(role: Role) -> Program:
    """Attention in three passes (`high`), or in one."""
    precision = jax.lax.Precision.HIGH if role == "slow" else None

    def encode(x: Any, layers: Any) -> Any:
        for parameters in layers:
            x = attention(parameters, x, precision)
        return x

    layers = [attention_parameters(512, 4, 128, jnp.float32)]
    return Program(encode, (Array((4, 512, 512), jnp.float32), layers))


def full_precision_activations(role: Role) -> Program:
    """A memory-bound network in 32 bits, or in 16."""
    dtype = jnp.float32 if role == "slow" else jnp.bfloat16

    def loss(layers: Any, x: Any) -> Any:
        for parameters in layers:
            x = x + jax.nn.gelu(x @ parameters["up"]) @ parameters["down"]
            x = x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + 1e-6)
        return mean_square(x)

    layers = [dense_parameters(256, 1024, dtype)] * 2
    return training(loss, layers, Array((32_768, 256), dtype))


def full_precision_products(role: Role) -> Program:
    """Large 32-bit products of default precision, or 16-bit ones."""
    dtype = jnp.float32 if role == "slow" else jnp.bfloat16

    def predict(x: Any, layers: Any) -> Any:
        for parameters in layers:
            x = dense(parameters, x)
        return x

    return Program(predict, (Array((4096, 2048), dtype), [dense_parameters(2048, 8192, dtype)]))


def one_hot_embedding(role: Role) -> Program:
    """Vectors of a table by a product with one-hot rows, or gathered."""
    vocabulary = 32_768

    def encode(ids: Any, table: Any, parameters: Any) -> Any:
        if role == "slow":
            x = jax.nn.one_hot(ids, vocabulary, dtype=table.dtype) @ table
        else:
            x = table[ids]
        return dense(parameters, x)

    table = Array((vocabulary, _FEATURES))
    arguments = (Array((8192,), jnp.int32), table, dense_parameters(_FEATURES, 4096))
    return Program(encode, arguments, donated=())


def one_hot_dispatch(role: Role) -> Program:
    """Tokens reach their experts by a product with a mask, or gathered."""
    tokens, experts, capacity = 8192, 16, 512

    def mixture(x: Any, slots: Any, weights: Any) -> Any:
        if role == "slow":
            mask = jax.nn.one_hot(slots, tokens, dtype=x.dtype)  # (experts, capacity, tokens)
            routed = jnp.einsum("ect,tm->ecm", mask, x)
        else:
            routed = x[slots]
        hidden = jax.nn.gelu(jnp.einsum("ecm,emh->ech", routed, weights["up"]))
        return jnp.einsum("ech,ehm->ecm", hidden, weights["down"])

    weights = {
        "up": Array((experts, _FEATURES, 2048)),
        "down": Array((experts, 2048, _FEATURES)),
    }
    slots = Array((experts, capacity), jnp.int32)
    return Program(mixture, (Array((tokens, _FEATURES)), slots, weights), donated=())


def pairwise_broadcast(role: Role) -> Program:
    """Distances by a broadcast difference, or by a product."""

    def nearest(x: Any, centers: Any, parameters: Any) -> Any:
        x = dense(parameters, x)
        if role == "slow":
            difference = x[:, None, :] - centers[None, :, :]
            distance = jnp.sum(jnp.square(difference), axis=-1, dtype=jnp.float32)
        else:
            product = jnp.matmul(x, centers.T, preferred_element_type=jnp.float32)
            square = jnp.sum(jnp.square(x.astype(jnp.float32)), axis=-1)
            distance = square[:, None] - 2 * product
            distance += jnp.sum(jnp.square(centers.astype(jnp.float32)), axis=-1)
        return jnp.argmin(distance, axis=-1)

    arguments = (Array((8192, 256)), Array((4096, 256)), dense_parameters(256, 1024))
    return Program(nearest, arguments, donated=())


def repeated_heads(role: Role) -> Program:
    """Keys and values are repeated for the queries that share them, or not."""
    groups, shared = 8, 8

    def attend(query: Any, key: Any, value: Any) -> Any:
        if role == "slow":
            keys, values = (jnp.repeat(array, shared, axis=1) for array in (key, value))
            keys, values = jax.lax.optimization_barrier((keys, values))
            scores = jnp.einsum("bhd,bhsd->bhs", query, keys).astype(jnp.float32)
            weights = jax.nn.softmax(scores).astype(query.dtype)
            return jnp.einsum("bhs,bhsd->bhd", weights, values)
        grouped = query.reshape(query.shape[0], groups, shared, query.shape[-1])
        scores = jnp.einsum("bgqd,bgsd->bgqs", grouped, key).astype(jnp.float32)
        weights = jax.nn.softmax(scores).astype(query.dtype)
        return jnp.einsum("bgqs,bgsd->bgqd", weights, value).reshape(query.shape)

    cache = Array((16, groups, 2048, 128))
    return Program(attend, (Array((16, groups * shared, 128)), cache, cache), donated=())


def _product(rows: int, contracted: int, columns: int) -> Program:
    def product(left: Any, right: Any) -> Any:
        return left @ right

    return Program(product, (Array((rows, contracted)), Array((contracted, columns))), donated=())


def product_n_130(role: Role) -> Program:
    """A large product with 130 columns, or 128."""
    return _product(8192, 4096, 130 if role == "slow" else 128)


def product_k_130(role: Role) -> Program:
    """A large product that contracts 130, or 128."""
    return _product(8192, 130 if role == "slow" else 128, 4096)


def decode_product(role: Role) -> Program:
    """A product of four rows with large weights."""
    return _product(4, 8192, 8192)


def vocabulary_50257(role: Role) -> Program:
    """Logits of 50,257 words, or of 50,304."""
    words = 50_257 if role == "slow" else 50_304

    def loss(head: Any, x: Any, labels: Any) -> Any:
        logits = jnp.matmul(x, head, preferred_element_type=jnp.float32)
        picked = jnp.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - picked)

    return training(loss, Array((768, words)), Array((2048, 768)), Array((2048,), jnp.int32))
