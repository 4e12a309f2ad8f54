"""Decoding and mixtures of experts."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from compiled_pairs.families.language import rms_norm
from compiled_pairs.program import Array, Program, Role

_WIDE = jnp.float32
_FEATURES, _HEADS, _GROUPS, _WIDTH, _HIDDEN = 2048, 16, 4, 128, 5632


def _layer() -> dict[str, Array]:
    return {
        "norm": Array((_FEATURES,)),
        "q": Array((_FEATURES, _HEADS, _WIDTH)),
        "k": Array((_FEATURES, _GROUPS, _WIDTH)),
        "v": Array((_FEATURES, _GROUPS, _WIDTH)),
        "o": Array((_HEADS, _WIDTH, _FEATURES)),
        "gate": Array((_FEATURES, _HIDDEN)),
        "up": Array((_FEATURES, _HIDDEN)),
        "down": Array((_HIDDEN, _FEATURES)),
    }


def _grouped(query: Any, keys: Any, values: Any, is_seen: Any) -> Any:
    """Attention of one position: (batch, heads, width) to (batch, length, groups, width)."""
    batch = query.shape[0]
    query = query.reshape(batch, _GROUPS, _HEADS // _GROUPS, _WIDTH)
    scores = jnp.einsum("bgnd,bkgd->bgnk", query, keys).astype(_WIDE) * _WIDTH**-0.5
    scores = jnp.where(is_seen, scores, -1e9)
    weights = jax.nn.softmax(scores, axis=-1).astype(values.dtype)
    return jnp.einsum("bgnk,bkgd->bgnd", weights, values).reshape(batch, _HEADS, _WIDTH)


def _feed(p: Any, x: Any) -> Any:
    normed = rms_norm(x, p["norm"])
    return x + (jax.nn.silu(normed @ p["gate"]) * (normed @ p["up"])) @ p["down"]


def _decoder(batch: int, length: int, write: Any, attend: Any, layers: int = 2) -> Program:
    def decode(caches: Any, layers: Any, x: Any, place: Any) -> Any:
        new = []
        for (keys, values), p in zip(caches, layers, strict=True):
            normed = rms_norm(x, p["norm"])
            query, key, value = (jnp.einsum("bm,mhd->bhd", normed, p[n]) for n in "qkv")
            keys, values = write(keys, key, place), write(values, value, place)
            mixed = attend(query, keys, values, place)
            x = _feed(p, x + jnp.einsum("bhd,hdm->bm", mixed, p["o"]))
            new.append((keys, values))
        return new, x

    cache = Array((batch, length, _GROUPS, _WIDTH))
    arguments = (
        [(cache, cache)] * layers,
        [_layer()] * layers,
        Array((batch, _FEATURES)),
        Array((), jnp.int32),
    )
    return Program(decode, arguments)


def _put(cache: Any, row: Any, place: Any) -> Any:
    return jax.lax.dynamic_update_slice(cache, row[:, None], (0, place, 0, 0))


def serving(role: Role) -> Program:
    """A step of decoding with grouped queries and donated caches."""

    def attend(query: Any, keys: Any, values: Any, place: Any) -> Any:
        return _grouped(query, keys, values, jnp.arange(keys.shape[1]) <= place)

    return _decoder(32, 2048, _put, attend)


def shifted_cache(role: Role) -> Program:
    """A cache of the last positions that is shifted by one, or is a ring."""

    def shift(cache: Any, row: Any, place: Any) -> Any:
        return jnp.concatenate([cache[:, 1:], row[:, None]], axis=1)

    def ring(cache: Any, row: Any, place: Any) -> Any:
        return _put(cache, row, place % cache.shape[1])

    def attend(query: Any, keys: Any, values: Any, place: Any) -> Any:
        return _grouped(query, keys, values, jnp.arange(keys.shape[1]) <= place)

    return _decoder(32, 2048, shift if role == "slow" else ring, attend)


def window_of_cache(role: Role) -> Program:
    """A window of 512 positions by masking a cache of 8,192, or by reading the window."""
    window, length = 512, 8192

    def attend(query: Any, keys: Any, values: Any, place: Any) -> Any:
        first = 0
        if role == "fixed":
            first = jnp.clip(place - window + 1, 0, length - window)
            keys, values = (
                jax.lax.dynamic_slice_in_dim(x, first, window, axis=1) for x in (keys, values)
            )
        places = first + jnp.arange(keys.shape[1])
        return _grouped(query, keys, values, (places <= place) & (places > place - window))

    return _decoder(16, length, _put, attend)


def repeated_groups(role: Role) -> Program:
    """Keys and values of a group are repeated for its queries, or shared."""

    def attend(query: Any, keys: Any, values: Any, place: Any) -> Any:
        is_seen = jnp.arange(keys.shape[1]) <= place
        if role == "fixed":
            return _grouped(query, keys, values, is_seen)
        keys, values = (jnp.repeat(x, _HEADS // _GROUPS, axis=2) for x in (keys, values))
        scores = jnp.einsum("bhd,bkhd->bhk", query, keys).astype(_WIDE) * _WIDTH**-0.5
        weights = jax.nn.softmax(jnp.where(is_seen, scores, -1e9), axis=-1).astype(values.dtype)
        return jnp.einsum("bhk,bkhd->bhd", weights, values)

    return _decoder(32, 2048, _put, attend)


def nucleus(role: Role) -> Program:
    """A word is drawn from the likeliest by sorting all logits, or from the 64 likeliest ones."""
    batch, words = 32, 65_536

    def draw(x: Any, head: Any, noise: Any) -> Any:
        logits = (x @ head).astype(_WIDE)
        if role == "slow":
            order = jnp.argsort(-logits, axis=-1)
            ranked = jnp.take_along_axis(logits, order, axis=-1)
        else:
            ranked, order = jax.lax.approx_max_k(logits, 64)
        shares = jnp.cumsum(jax.nn.softmax(ranked, axis=-1), axis=-1)
        ranked = jnp.where(shares - jax.nn.softmax(ranked, axis=-1) < 0.9, ranked, -jnp.inf)
        choice = jnp.argmax(ranked + noise[:, : ranked.shape[1]], axis=-1)
        return jnp.take_along_axis(order, choice[:, None], axis=-1)

    arguments = (Array((batch, _FEATURES)), Array((_FEATURES, words)), Array((batch, words), _WIDE))
    return Program(draw, arguments, donated=())


def prefill_of_all(role: Role) -> Program:
    """Logits of all positions of a prompt, of which the last is used, or of the last."""
    batch, length, words = 4, 1024, 32_000

    def prefill(p: Any, x: Any, head: Any) -> Any:
        x = _feed(p, x)
        if role == "fixed":
            x = x[:, -1:]
        logits = rms_norm(x, p["norm"]) @ head
        return jnp.argmax(logits[:, -1], axis=-1)

    layer = {name: a for name, a in _layer().items() if name in ("norm", "gate", "up", "down")}
    arguments = (layer, Array((batch, length, _FEATURES)), Array((_FEATURES, words)))
    return Program(prefill, arguments, donated=())


_EXPERTS, _TOKENS, _WIDTH_OF_EXPERT = 8, 4096, 1024


def _experts() -> dict[str, Array]:
    return {
        "router": Array((512, _EXPERTS), _WIDE),
        "up": Array((_EXPERTS, 512, _WIDTH_OF_EXPERT)),
        "down": Array((_EXPERTS, _WIDTH_OF_EXPERT, 512)),
    }


def _by_capacity(p: Any, x: Any, gates: Any, capacity: int) -> Any:
    """Each expert takes its best tokens; others pass."""
    weights, rows = jax.lax.top_k(gates.T, capacity)
    taken = x[rows]
    hidden = jax.nn.gelu(jnp.einsum("ecm,emf->ecf", taken, p["up"]))
    results = jnp.einsum("ecf,efm->ecm", hidden, p["down"]) * weights[..., None].astype(x.dtype)
    return x.at[rows.reshape(-1)].add(results.reshape(-1, x.shape[-1]))


def all_experts(role: Role) -> Program:
    """All experts compute all tokens, whose gates are 0 for six of eight, or their own."""

    def predict(p: Any, x: Any) -> Any:
        gates = jax.nn.softmax(x.astype(_WIDE) @ p["router"], axis=-1)
        if role == "fixed":
            return _by_capacity(p, x, gates, _TOKENS * 2 // _EXPERTS)
        best, which = jax.lax.top_k(gates, 2)
        gates = jnp.sum(jax.nn.one_hot(which, _EXPERTS) * best[..., None], axis=1)
        result = jnp.zeros_like(x)
        for expert in range(_EXPERTS):
            hidden = jax.nn.gelu(x @ p["up"][expert])
            result += (hidden @ p["down"][expert]) * gates[:, expert, None].astype(x.dtype)
        return x + result

    return Program(predict, (_experts(), Array((_TOKENS, 512))), donated=())


def dispatched_by_mask(role: Role) -> Program:
    """Tokens go to places of experts by products with a mask, or by index."""
    capacity = _TOKENS // _EXPERTS

    def predict(p: Any, x: Any) -> Any:
        gates = jax.nn.softmax(x.astype(_WIDE) @ p["router"], axis=-1)
        if role == "fixed":
            return _by_capacity(p, x, gates, capacity)
        best, which = jnp.max(gates, axis=-1), jnp.argmax(gates, axis=-1)
        chosen = jax.nn.one_hot(which, _EXPERTS)
        places = jnp.cumsum(chosen, axis=0) * chosen - 1
        dispatch = jax.nn.one_hot(places, capacity) * chosen[..., None]
        combine = dispatch * best[:, None, None]
        taken = jnp.einsum("tec,tm->ecm", dispatch.astype(x.dtype), x)
        hidden = jax.nn.gelu(jnp.einsum("ecm,emf->ecf", taken, p["up"]))
        results = jnp.einsum("ecf,efm->ecm", hidden, p["down"])
        return x + jnp.einsum("tec,ecm->tm", combine.astype(x.dtype), results)

    return Program(predict, (_experts(), Array((_TOKENS, 512))), donated=())
