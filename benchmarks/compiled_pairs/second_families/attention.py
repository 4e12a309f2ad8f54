"""Attention over long contexts."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from compiled_pairs.program import Array, Program, Role

_WIDE = jnp.float32
_FEATURES, _HEADS, _WIDTH = 512, 8, 64


def _projections() -> dict[str, Array]:
    shape = (_FEATURES, _HEADS, _WIDTH)
    return {n: Array(shape) for n in "qkv"} | {"o": Array((_HEADS, _WIDTH, _FEATURES))}


def _heads(p: Any, x: Any) -> Any:
    return tuple(jnp.einsum("bsm,mhd->bhsd", x, p[n]) for n in "qkv")


def _mix(p: Any, x: Any, weights: Any, value: Any) -> Any:
    mixed = jnp.einsum("bhqk,bhkd->bhqd", weights.astype(value.dtype), value)
    return x + jnp.einsum("bhsd,hdm->bsm", mixed, p["o"])


def _buckets(length: int, count: int, farthest: int = 512) -> Any:
    """The bucket of each pair of positions by their distance, as T5 has them."""
    places = jnp.arange(length)
    distance = jnp.abs(places[:, None] - places)
    exact = count // 2
    ratio = jnp.log(jnp.maximum(distance, 1).astype(_WIDE) / exact) / jnp.log(farthest / exact)
    far = exact + (ratio * (count - exact)).astype(jnp.int32)
    return jnp.where(distance < exact, distance, jnp.clip(far, exact, count - 1))


def gathered_relative_bias(role: Role) -> Program:
    """A learned bias for 32 buckets of distances is added to the scores of 2,048 positions.

    Slow: the table is indexed by the bucket of each of 4 million pairs.
    Fixed: one-hot buckets are multiplied with the table.
    """
    length, buckets = 2048, 32

    def predict(p: Any, x: Any, table: Any) -> Any:
        query, key, value = _heads(p, x)
        bucket = _buckets(length, buckets)
        if role == "slow":
            bias = jnp.transpose(table[bucket], (2, 0, 1))
        else:
            chosen = jax.nn.one_hot(bucket, buckets, dtype=table.dtype)
            bias = jnp.einsum("rh,qkr->hqk", table, chosen)
        scores = jnp.einsum("bhqd,bhkd->bhqk", query, key).astype(_WIDE) * _WIDTH**-0.5
        return _mix(p, x, jax.nn.softmax(scores + bias.astype(_WIDE), axis=-1), value)

    arguments = (_projections(), Array((2, length, _FEATURES)), Array((buckets, _HEADS)))
    return Program(predict, arguments, donated=())


def rebuilt_masks(role: Role) -> Program:
    """Three layers of causal attention over packed documents.

    Slow: each layer compares positions and documents to make its mask.
    Fixed: the mask of all pairs is made once by the loader and is an argument.
    """
    batch, length = 2, 2048

    def predict(layers: Any, x: Any, documents: Any, mask: Any = None) -> Any:
        for p in layers:
            query, key, value = _heads(p, x)
            scores = jnp.einsum("bhqd,bhkd->bhqk", query, key).astype(_WIDE) * _WIDTH**-0.5
            if role == "slow":
                places = jnp.arange(length)
                is_seen = places[:, None] >= places
                is_seen &= documents[:, :, None] == documents[:, None, :]
            else:
                is_seen = mask
            scores = jnp.where(is_seen[:, None], scores, -1e9)
            x = _mix(p, x, jax.nn.softmax(scores, axis=-1), value)
        return x

    arguments = [
        [_projections()] * 3,
        Array((batch, length, _FEATURES)),
        Array((batch, length), jnp.int32),
    ]
    if role == "fixed":
        arguments.append(Array((batch, length, length), jnp.bool_))
    return Program(predict, tuple(arguments), donated=())


def local_blocks(role: Role) -> Program:
    """Attention over a window of 512 positions: each block sees itself and the one before."""
    batch, length, size, width = 1, 16_384, 512, 128
    heads = 4
    blocks = length // size

    def with_last(x: Any) -> Any:
        before = jnp.pad(x[:, :, :-1], ((0, 0), (0, 0), (1, 0), (0, 0), (0, 0)))
        return jnp.concatenate([before, x], axis=3)

    def predict(p: Any, x: Any) -> Any:
        query, key, value = (
            jnp.einsum("bsm,mhd->bhsd", x, p[n]).reshape(batch, heads, blocks, size, width)
            for n in "qkv"
        )
        key, value = with_last(key), with_last(value)
        scores = jnp.einsum("bhnqd,bhnkd->bhnqk", query, key).astype(_WIDE) * width**-0.5
        distance = size + jnp.arange(size)[:, None] - jnp.arange(2 * size)
        is_seen = (distance >= 0) & (distance < size)
        is_first = (jnp.arange(blocks) == 0)[:, None, None] & (jnp.arange(2 * size) < size)
        scores = jnp.where(is_seen & ~is_first, scores, -1e9)
        weights = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
        mixed = jnp.einsum("bhnqk,bhnkd->bhnqd", weights, value)
        mixed = mixed.reshape(batch, heads, length, width)
        return x + jnp.einsum("bhsd,hdm->bsm", mixed, p["o"])

    parameters = {n: Array((_FEATURES, heads, width)) for n in "qkv"}
    parameters["o"] = Array((heads, width, _FEATURES))
    return Program(predict, (parameters, Array((batch, length, _FEATURES))), donated=())
