"""Decoding one token at a time: caches, their updates, and the types of what is read."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from compiled_pairs.program import Array, Program, Role

_BATCH, _HEADS, _WIDTH, _LENGTH = 16, 8, 128, 2048
_FEATURES = _HEADS * _WIDTH
_LAYERS = 2


def _caches(dtype: Any = jnp.bfloat16, length: int = _LENGTH) -> list[dict[str, Array]]:
    shape = (_BATCH, _HEADS, length, _WIDTH)
    return [{"k": Array(shape, dtype), "v": Array(shape, dtype)} for _ in range(_LAYERS)]


def _layers() -> list[dict[str, Array]]:
    square = Array((_FEATURES, _FEATURES))
    wide = {"up": Array((_FEATURES, 4 * _FEATURES)), "down": Array((4 * _FEATURES, _FEATURES))}
    return [{"q": square, "k": square, "v": square, "o": square, **wide} for _ in range(_LAYERS)]


def _by_head(x: Any) -> Any:
    return x.reshape(_BATCH, _HEADS, 1, _WIDTH)


def _put_slice(cache: Any, new: Any, position: Any) -> Any:
    return jax.lax.dynamic_update_slice(cache, new.astype(cache.dtype), (0, 0, position, 0))


def _put_where(cache: Any, new: Any, position: Any) -> Any:
    is_place = jnp.arange(cache.shape[2])[None, None, :, None] == position
    return jnp.where(is_place, new.astype(cache.dtype), cache)


def _attend(query: Any, keys: Any, values: Any, position: Any) -> Any:
    scores = jnp.einsum("bhqd,bhkd->bhqk", query, keys).astype(jnp.float32) * _WIDTH**-0.5
    scores = jnp.where(jnp.arange(keys.shape[2]) <= position, scores, -1e9)
    weights = jax.nn.softmax(scores, axis=-1).astype(values.dtype)
    return jnp.einsum("bhqk,bhkd->bhqd", weights, values).astype(jnp.bfloat16)


def _decode(caches: Any, x: Any, layers: Any, position: Any, put: Any = _put_slice) -> Any:
    updated = []
    for cache, weights in zip(caches, layers, strict=True):
        keys = put(cache["k"], _by_head(x @ weights["k"]), position)
        values = put(cache["v"], _by_head(x @ weights["v"]), position)
        mixed = _attend(_by_head(x @ weights["q"]), keys, values, position)
        x = x + mixed.reshape(_BATCH, _FEATURES) @ weights["o"]
        x = x + jax.nn.gelu(x @ weights["up"]) @ weights["down"]
        updated.append({"k": keys, "v": values})
    return updated, x


def _arguments(caches: Any) -> tuple[Any, ...]:
    return caches, Array((_BATCH, _FEATURES)), _layers(), Array((), jnp.int32)


def copied_cache(role: Role) -> Program:
    """A cache that is returned anew, or in the memory of the old one."""

    def decode_step(caches: Any, x: Any, layers: Any, position: Any) -> Any:
        return _decode(caches, x, layers, position)

    return Program(decode_step, _arguments(_caches()), donated=() if role == "slow" else (0,))


def cache_by_where(role: Role) -> Program:
    """A token is put into the cache by a choice over all positions, or by an update in place."""

    def decode_step(caches: Any, x: Any, layers: Any, position: Any) -> Any:
        return _decode(caches, x, layers, position, _put_where if role == "slow" else _put_slice)

    return Program(decode_step, _arguments(_caches()))


def wide_cache(role: Role) -> Program:
    """A cache in 32 bits, or in 16."""

    def decode_step(caches: Any, x: Any, layers: Any, position: Any) -> Any:
        return _decode(caches, x, layers, position)

    return Program(
        decode_step, _arguments(_caches(jnp.float32 if role == "slow" else jnp.bfloat16))
    )


_HIDDEN = 4096


def _quantized_layers() -> list[dict[str, Array]]:
    return [
        {"w": Array((_HIDDEN, _HIDDEN), jnp.int8), "scale": Array((_HIDDEN,), jnp.float32)}
        for _ in range(6)
    ]


def widened_weights(role: Role) -> Program:
    """8-bit weights that are scaled in 32 bits before a product, or after one in 16 bits."""

    def decode_step(x: Any, layers: Any) -> Any:
        for weights in layers:
            if role == "slow":
                whole = weights["w"].astype(jnp.float32) * weights["scale"]
                whole = jax.lax.optimization_barrier(whole)
                product = x.astype(jnp.float32) @ whole
            else:
                product = (x @ weights["w"].astype(jnp.bfloat16)) * weights["scale"]
            x = jax.nn.relu(product).astype(jnp.bfloat16)
        return x

    return Program(decode_step, (Array((16, _HIDDEN)), _quantized_layers()))


def weights_in_16_bits(role: Role) -> Program:
    """A few rows by 16-bit weights, or by 8-bit weights."""

    def decode_step(x: Any, layers: Any) -> Any:
        for weights in layers:
            if role == "slow":
                x = jax.nn.relu(x @ weights)
            else:
                product = (x @ weights["w"].astype(jnp.bfloat16)) * weights["scale"]
                x = jax.nn.relu(product).astype(jnp.bfloat16)
        return x

    layers = [Array((_HIDDEN, _HIDDEN))] * 6 if role == "slow" else _quantized_layers()
    return Program(decode_step, (Array((16, _HIDDEN)), layers))


def reordered_cache(role: Role) -> Program:
    """All of a cache is reordered by beam, or only what follows the common prompt."""
    prompt = 3 * _LENGTH // 4

    def decode_step(caches: Any, x: Any, layers: Any, position: Any, beams: Any) -> Any:
        updated, x = _decode(caches, x, layers, position)
        if role == "slow":
            return jax.tree.map(lambda cache: cache[beams], updated), x[beams]

        def reorder(cache: Any) -> Any:
            moved = cache[:, :, prompt:][beams]
            return jax.lax.dynamic_update_slice(cache, moved, (0, 0, prompt, 0))

        return jax.tree.map(reorder, updated), x[beams]

    return Program(decode_step, (*_arguments(_caches()), Array((_BATCH,), jnp.int32)))
