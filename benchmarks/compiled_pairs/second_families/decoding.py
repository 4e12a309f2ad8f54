"""Decoding and serving."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from compiled_pairs.program import Array, Program, Role

_WIDE = jnp.float32


def tiled_prompt(role: Role) -> Program:
    """A step of beam search attends to the encoder's keys and values: 8 requests of 4 beams.

    Slow: they are stored once per beam. Fixed: once per request, for its four beams together.
    """
    requests, beams, heads, width, length, features = 8, 4, 8, 128, 2048, 1024

    def decode(x: Any, p: Any, keys: Any, values: Any) -> Any:
        query = jnp.einsum("nm,mhd->nhd", x, p["q"])
        if role == "slow":
            scores = jnp.einsum("nhd,nhkd->nhk", query, keys).astype(_WIDE) * width**-0.5
            weights = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
            mixed = jnp.einsum("nhk,nhkd->nhd", weights, values)
        else:
            query = query.reshape(requests, beams, heads, width)
            scores = jnp.einsum("rbhd,rhkd->rhbk", query, keys).astype(_WIDE) * width**-0.5
            weights = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
            mixed = jnp.einsum("rhbk,rhkd->rbhd", weights, values)
            mixed = mixed.reshape(requests * beams, heads, width)
        x = x + jnp.einsum("nhd,hdm->nm", mixed, p["o"])
        return x + jax.nn.gelu(x @ p["up"]) @ p["down"]

    parameters = {
        "q": Array((features, heads, width)),
        "o": Array((heads, width, features)),
        "up": Array((features, 4096)),
        "down": Array((4096, features)),
    }
    rows = requests * beams if role == "slow" else requests
    memory = Array((rows, heads, length, width))
    return Program(decode, (Array((requests * beams, features)), parameters, memory, memory))


def verified_one_by_one(role: Role) -> Program:
    """Four words drafted by a small model are verified by a large one.

    Slow: in a loop over the words, each of which reads all weights.
    Fixed: all four in one pass with a causal mask.
    """
    batch, draft, length, features, heads, width, hidden = 8, 4, 1024, 2048, 16, 128, 5632

    def forward(caches: Any, layers: Any, x: Any, place: Any) -> Any:
        """The words from `place` on: (batch, words, features)."""
        new = []
        for (keys, values), p in zip(caches, layers, strict=True):
            query, key, value = (jnp.einsum("bsm,mhd->bhsd", x, p[n]) for n in "qkv")
            keys = jax.lax.dynamic_update_slice(keys, key, (0, 0, place, 0))
            values = jax.lax.dynamic_update_slice(values, value, (0, 0, place, 0))
            scores = jnp.einsum("bhqd,bhkd->bhqk", query, keys).astype(_WIDE) * width**-0.5
            is_seen = jnp.arange(length) <= place + jnp.arange(x.shape[1])[:, None]
            weights = jax.nn.softmax(jnp.where(is_seen, scores, -1e9), axis=-1).astype(x.dtype)
            mixed = jnp.einsum("bhqk,bhkd->bhqd", weights, values)
            x = x + jnp.einsum("bhsd,hdm->bsm", mixed, p["o"])
            x = x + (jax.nn.silu(x @ p["gate"]) * (x @ p["up"])) @ p["down"]
            new.append((keys, values))
        return new, x

    def verify(caches: Any, layers: Any, words: Any, place: Any) -> Any:
        if role == "fixed":
            return forward(caches, layers, words, place)

        def one(carry: Any, word: Any) -> Any:
            caches, place = carry
            caches, x = forward(caches, layers, word[:, None], place)
            return (caches, place + 1), x[:, 0]

        (caches, _), results = jax.lax.scan(one, (caches, place), jnp.swapaxes(words, 0, 1))
        return caches, jnp.swapaxes(results, 0, 1)

    layer = {n: Array((features, heads, width)) for n in "qkv"}
    layer |= {
        "o": Array((heads, width, features)),
        "gate": Array((features, hidden)),
        "up": Array((features, hidden)),
        "down": Array((hidden, features)),
    }
    cache = Array((batch, heads, length, width))
    arguments = (
        [(cache, cache)] * 2,
        [layer] * 2,
        Array((batch, draft, features)),
        Array((), jnp.int32),
    )
    return Program(verify, arguments)


def unrolled_layers(role: Role) -> Program:
    """A step of decoding through four layers.

    Slow: a Python loop over layers, each with its own weights and cache.
    Fixed: a scan over stacked weights and caches.
    """
    count, batch, length, features, heads, width, hidden = 4, 16, 1024, 1024, 8, 128, 4096

    def layer(x: Any, p: Any, cache: Any, place: Any) -> Any:
        query, key, value = (jnp.einsum("bm,mhd->bhd", x, p[n]) for n in "qkv")
        keys = jax.lax.dynamic_update_slice(cache[0], key[:, :, None], (0, 0, place, 0))
        values = jax.lax.dynamic_update_slice(cache[1], value[:, :, None], (0, 0, place, 0))
        scores = jnp.einsum("bhd,bhkd->bhk", query, keys).astype(_WIDE) * width**-0.5
        scores = jnp.where(jnp.arange(length) <= place, scores, -1e9)
        weights = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
        x = x + jnp.einsum("bhk,bhkd,hdm->bm", weights, values, p["o"])
        return x + jax.nn.gelu(x @ p["up"]) @ p["down"], (keys, values)

    def decode(caches: Any, layers: Any, x: Any, place: Any) -> Any:
        if role == "fixed":

            def one(x: Any, part: Any) -> Any:
                return layer(x, part[0], part[1], place)

            x, caches = jax.lax.scan(one, x, (layers, caches))
            return caches, x
        new = []
        for p, cache in zip(layers, caches, strict=True):
            x, cache = layer(x, p, cache, place)
            new.append(cache)
        return new, x

    shapes: dict[str, tuple[int, ...]] = dict.fromkeys("qkv", (features, heads, width))
    shapes |= {"o": (heads, width, features), "up": (features, hidden), "down": (hidden, features)}
    rows = (batch, heads, length, width)
    if role == "slow":
        layers: Any = [{n: Array(shape) for n, shape in shapes.items()}] * count
        caches: Any = [(Array(rows), Array(rows))] * count
    else:
        layers = {n: Array((count, *shape)) for n, shape in shapes.items()}
        caches = (Array((count, *rows)), Array((count, *rows)))
    return Program(decode, (caches, layers, Array((batch, features)), Array((), jnp.int32)))
