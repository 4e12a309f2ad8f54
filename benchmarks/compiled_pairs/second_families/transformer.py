"""Training of small transformers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from compiled_pairs.program import Array, Program, Role, descend, mean_square, training

_WIDE = jnp.float32


def _norm(x: Any, scale: Any) -> Any:
    wide = x.astype(_WIDE)
    mean = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
    return (wide * jax.lax.rsqrt(mean + 1e-6) * scale).astype(x.dtype)


def _attend(query: Any, key: Any, value: Any) -> Any:
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key).astype(_WIDE) * query.shape[-1] ** -0.5
    length = query.shape[1]
    is_seen = jnp.arange(length)[:, None] >= jnp.arange(length)
    weights = jax.nn.softmax(jnp.where(is_seen, scores, -1e9), axis=-1).astype(value.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, value)


def _layer(p: Any, x: Any) -> Any:
    p = {n: w if n.startswith("scale") else w.astype(x.dtype) for n, w in p.items()}
    normed = _norm(x, p["scale_1"])
    query, key, value = jnp.moveaxis(jnp.einsum("bsm,mchd->bschd", normed, p["qkv"]), 2, 0)
    x = x + jnp.einsum("bshd,hdm->bsm", _attend(query, key, value), p["o"])
    normed = _norm(x, p["scale_2"])
    return x + jax.nn.gelu(normed @ p["up"]) @ p["down"]


def _weights(features: int, heads: int, width: int, hidden: int, dtype: Any = _WIDE) -> Any:
    return {
        "scale_1": Array((features,), _WIDE),
        "scale_2": Array((features,), _WIDE),
        "qkv": Array((features, 3, heads, width), dtype),
        "o": Array((heads, width, features), dtype),
        "up": Array((features, hidden), dtype),
        "down": Array((hidden, features), dtype),
    }


def tiny_microbatches(role: Role) -> Program:
    """Gradients of 16 sequences.

    Slow: they are accumulated over 16 microbatches of one sequence, though all fit at once.
    Fixed: one batch of 16 sequences.
    """
    features, batch, length = 1024, 16, 256

    def loss(p: Any, x: Any) -> Any:
        x = x.astype(jnp.bfloat16)
        for layer in p:
            x = _layer(layer, x)
        return mean_square(x)

    def train_step(p: Any, x: Any) -> Any:
        if role == "fixed":
            value, gradients = jax.value_and_grad(loss)(p, x)
            return descend(p, gradients), value

        def accumulate(total: Any, part: Any) -> Any:
            new = jax.value_and_grad(loss)(p, part)
            return jax.tree.map(jnp.add, total, new), None

        start = (jnp.zeros((), _WIDE), jax.tree.map(jnp.zeros_like, p))
        (value, gradients), _ = jax.lax.scan(accumulate, start, x[:, None])
        gradients = jax.tree.map(lambda g: g / batch, gradients)
        return descend(p, gradients), value / batch

    layers = [_weights(features, 8, 128, 4096)] * 2
    return Program(train_step, (layers, Array((batch, length, features))))


def checkpointed_small_model(role: Role) -> Program:
    """Three layers at a size that leaves most of the memory free.

    Slow: each layer is wrapped in `jax.checkpoint`, so backward computes it again.
    Fixed: activations are kept.
    """
    layer = jax.checkpoint(_layer) if role == "slow" else _layer

    def loss(p: Any, x: Any) -> Any:
        for parameters in p:
            x = layer(parameters, x)
        return mean_square(x)

    layers = [_weights(1024, 8, 128, 4096, jnp.bfloat16)] * 3
    return training(loss, layers, Array((32, 256, 1024)))


def separate_qkv(role: Role) -> Program:
    """Projections of 8,192 tokens to queries, keys and values.

    Slow: three products. Fixed: one product with a joined matrix, whose result is split.
    """
    features, heads, width = 1024, 8, 128

    def loss(p: Any, x: Any) -> Any:
        if role == "slow":
            query, key, value = (jnp.einsum("bsm,mhd->bshd", x, p[n]) for n in "qkv")
        else:
            joined = x @ p["qkv"]
            query, key, value = (
                part.reshape(*x.shape[:2], heads, width) for part in jnp.split(joined, 3, axis=-1)
            )
        x = x + jnp.einsum("bshd,hdm->bsm", _attend(query, key, value), p["o"])
        return mean_square(x + jax.nn.gelu(x @ p["up"]) @ p["down"])

    parameters = {
        "o": Array((heads, width, features)),
        "up": Array((features, 4096)),
        "down": Array((4096, features)),
    }
    if role == "slow":
        parameters |= {name: Array((features, heads, width)) for name in "qkv"}
    else:
        parameters["qkv"] = Array((features, 3 * heads * width))
    return training(loss, parameters, Array((16, 512, features)))
