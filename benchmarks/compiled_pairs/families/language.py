"""Training of language models, short and long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from compiled_pairs.program import Array, Program, Role

_WIDE = jnp.float32


def rms_norm(x: Any, scale: Any) -> Any:
    """Normalization by the root of the mean square, in 32 bits."""
    wide = x.astype(_WIDE)
    mean = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
    return (wide * jax.lax.rsqrt(mean + 1e-6)).astype(x.dtype) * scale.astype(x.dtype)


def rotate(x: Any, places: Any) -> Any:
    """Rotary embedding of (batch, sequence, heads, width)."""
    half = x.shape[-1] // 2
    frequencies = 10_000.0 ** (-jnp.arange(half, dtype=_WIDE) / half)
    angles = places[:, None].astype(_WIDE) * frequencies
    cosine, sine = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    first, second = jnp.split(x.astype(_WIDE), 2, axis=-1)
    turned = (first * cosine - second * sine, second * cosine + first * sine)
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def causal_attention(query: Any, key: Any, value: Any) -> Any:
    """Attention over (batch, sequence, heads, width), as most public code writes it."""
    length = query.shape[1]
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * query.shape[-1] ** -0.5
    mask = jnp.tril(jnp.ones((length, length), bool))
    scores = jnp.where(mask, scores.astype(_WIDE), -1e9)
    weights = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, value)


def block_parameters(features: int, heads: int, width: int, hidden: int, dtype: Any = _WIDE) -> Any:
    """A block of Llama's kind."""
    return {
        "norm": Array((features,), dtype),
        "qkv": Array((features, 3, heads, width), dtype),
        "o": Array((heads, width, features), dtype),
        "gate": Array((features, hidden), dtype),
        "up": Array((features, hidden), dtype),
        "down": Array((hidden, features), dtype),
    }


def block(
    p: Any, x: Any, attend: Callable[[Any, Any, Any], Any] = causal_attention, precision: Any = None
) -> Any:
    """A block of Llama's kind, in 16 bits unless `x` is wider."""
    p = jax.tree.map(lambda w: w.astype(x.dtype), p)
    places = jnp.arange(x.shape[1])
    normed = rms_norm(x, p["norm"])
    qkv = jnp.einsum("bsm,mchd->cbshd", normed, p["qkv"], precision=precision)
    mixed = attend(rotate(qkv[0], places), rotate(qkv[1], places), qkv[2])
    x = x + jnp.einsum("bshd,hdm->bsm", mixed, p["o"], precision=precision)
    normed = rms_norm(x, p["norm"])
    gate = jnp.matmul(normed, p["gate"], precision=precision)
    up = jnp.matmul(normed, p["up"], precision=precision)
    return x + jnp.matmul(jax.nn.silu(gate) * up, p["down"], precision=precision)


def cross_entropy(logits: Any, words: Any) -> Any:
    """The mean loss of logits, in 32 bits."""
    logits = logits.astype(_WIDE)
    chosen = jnp.take_along_axis(logits, words[..., None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - chosen)


def adam(
    loss: Callable[..., Any],
    parameters: Any,
    *batch: Any,
    donated: tuple[int, ...] = (0,),
    **options: Any,
) -> Program:
    """A step of Adam over parameters and two moments in 32 bits."""

    def train_step(state: Any, *batch: Any) -> Any:
        parameters, means, squares = state
        value, gradients = jax.value_and_grad(loss)(parameters, *batch)
        means = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, means, gradients)
        squares = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g * g, squares, gradients)
        parameters = jax.tree.map(
            lambda p, m, s: p - 1e-3 * m / (jnp.sqrt(s) + 1e-8), parameters, means, squares
        )
        return (parameters, means, squares), value

    return Program(train_step, ((parameters,) * 3, *batch), donated=donated, **options)


def _model(layer: Callable[[Any, Any], Any], batch: int, length: int, **options: Any) -> Program:
    features, words = 1024, 16_384

    def loss(p: Any, tokens: Any) -> Any:
        x = p["embedding"][tokens].astype(jnp.bfloat16)
        for parameters in p["blocks"]:
            x = layer(parameters, x)
        logits = x @ p["head"].astype(x.dtype)
        return cross_entropy(logits, tokens)

    parameters = {
        "embedding": Array((words, features), _WIDE),
        "blocks": [block_parameters(features, 8, 128, 2816)],
        "head": Array((features, words), _WIDE),
    }
    return adam(loss, parameters, Array((batch, length), jnp.int32), **options)


def pretraining(role: Role) -> Program:
    """A step of Llama's kind."""
    return _model(block, 8, 1024)


def exact_blocks(role: Role) -> Program:
    """Blocks in 32 bits with the precision that PyTorch's users expect, or in 16 bits."""
    if role == "fixed":
        return _model(block, 8, 512)
    highest = jax.lax.Precision.HIGHEST

    def layer(p: Any, x: Any) -> Any:
        return block(p, x.astype(_WIDE), precision=highest).astype(x.dtype)

    return _model(layer, 8, 512)


def kept_state(role: Role) -> Program:
    """The state is not donated, or is."""
    return _model(block, 8, 512, donated=() if role == "slow" else (0,))


def classifier(role: Role) -> Program:
    """The last block computes all positions, of which one is classified, or that one."""
    features, batch, length = 768, 32, 512

    def last_of_first(p: Any, x: Any) -> Any:
        p = jax.tree.map(lambda w: w.astype(x.dtype), p)
        normed = rms_norm(x, p["norm"])
        query = jnp.einsum("bsm,mhd->bshd", normed[:, :1], p["qkv"][:, 0])
        key, value = (jnp.einsum("bsm,mhd->bshd", normed, p["qkv"][:, i]) for i in (1, 2))
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * query.shape[-1] ** -0.5
        weights = jax.nn.softmax(scores.astype(_WIDE), axis=-1).astype(x.dtype)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, value)
        x = x[:, :1] + jnp.einsum("bshd,hdm->bsm", mixed, p["o"])
        normed = rms_norm(x, p["norm"])
        return x + (jax.nn.silu(normed @ p["gate"]) * (normed @ p["up"])) @ p["down"]

    def full(query: Any, key: Any, value: Any) -> Any:
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * query.shape[-1] ** -0.5
        weights = jax.nn.softmax(scores.astype(_WIDE), axis=-1).astype(value.dtype)
        return jnp.einsum("bhqk,bkhd->bqhd", weights, value)

    def predict(p: Any, x: Any) -> Any:
        x = block(p["block"], x, full) if role == "slow" else last_of_first(p["block"], x)
        return jnp.tanh(x[:, 0] @ p["pool"]) @ p["out"]

    parameters = {
        "block": block_parameters(features, 6, 128, 3072, jnp.bfloat16),
        "pool": Array((features, features)),
        "out": Array((features, 16)),
    }
    return Program(predict, (parameters, Array((batch, length, features))), donated=())


def whole_attention(role: Role) -> Program:
    """Causal attention over all pairs of 4,096 positions, or over those up to each block."""
    length, heads, width, blocks = 4096, 4, 128, 8
    size = length // blocks

    def attend(query: Any, key: Any, value: Any) -> Any:
        if role == "slow":
            return causal_attention(query, key, value)
        parts = []
        for number in range(blocks):
            end = (number + 1) * size
            part = query[:, number * size : end]
            scores = jnp.einsum("bqhd,bkhd->bhqk", part, key[:, :end]) * width**-0.5
            mask = jnp.arange(number * size, end)[:, None] >= jnp.arange(end)
            scores = jnp.where(mask, scores.astype(_WIDE), -1e9)
            weights = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
            parts.append(jnp.einsum("bhqk,bkhd->bqhd", weights, value[:, :end]))
        return jnp.concatenate(parts, axis=1)

    def predict(p: Any, x: Any) -> Any:
        return block(p, x, attend)

    parameters = block_parameters(512, heads, width, 1408, jnp.bfloat16)
    return Program(predict, (parameters, Array((1, length, 512))), donated=())


def bias_of_positions(role: Role) -> Program:
    """A linear bias by distance comes as an array of all pairs, or is computed from positions."""
    batch, length, heads, width = 2, 2048, 8, 64

    def predict(p: Any, x: Any, bias: Any = None) -> Any:
        def attend(query: Any, key: Any, value: Any) -> Any:
            scores = jnp.einsum("bqhd,bkhd->bhqk", query, key).astype(_WIDE) * width**-0.5
            if role == "slow":
                scores = scores + bias
            else:
                places = jnp.arange(length)
                distance = places[:, None] - places
                slopes = 2.0 ** -jnp.arange(1, heads + 1, dtype=_WIDE)
                line = -slopes[:, None, None] * distance.astype(_WIDE)
                scores = scores + jnp.where(distance >= 0, line, -1e9)
            weights = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
            return jnp.einsum("bhqk,bkhd->bqhd", weights, value)

        return block(p, x, attend)

    parameters = block_parameters(512, heads, width, 1408, jnp.bfloat16)
    x = Array((batch, length, 512))
    bias = Array((1, heads, length, length), _WIDE)
    return Program(
        predict, (parameters, x, bias) if role == "slow" else (parameters, x), donated=()
    )


def repeated_rotations(role: Role) -> Program:
    """Each block computes its rotary embedding, or gets tables of cosines and sines."""
    length, heads, width = 4096, 4, 128
    half = width // 2

    def turn(x: Any, tables: Any) -> Any:
        if role == "slow":
            return rotate(x, jnp.arange(length))
        first, second = jnp.split(x.astype(_WIDE), 2, axis=-1)
        cosine, sine = tables[0][:, None], tables[1][:, None]
        turned = (first * cosine - second * sine, second * cosine + first * sine)
        return jnp.concatenate(turned, axis=-1).astype(x.dtype)

    def predict(blocks: Any, x: Any, tables: Any) -> Any:
        for p in blocks:
            query, key = (turn(jnp.einsum("bsm,mhd->bshd", x, p[n]), tables) for n in "qk")
            x = x + jnp.einsum("bshd,hdm->bsm", query * jax.nn.sigmoid(key), p["o"])
        return x

    layer = {name: Array((512, heads, width)) for name in "qk"} | {"o": Array((heads, width, 512))}
    tables = (Array((length, half), _WIDE),) * 2
    return Program(predict, ([layer] * 2, Array((4, length, 512)), tables), donated=())
