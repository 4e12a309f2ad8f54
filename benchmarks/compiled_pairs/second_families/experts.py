"""Mixtures of experts."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from compiled_pairs.program import Array, Program, Role

_WIDE = jnp.float32


def gathered_expert_weights(role: Role) -> Program:
    """A feed-forward layer of 8 experts decodes 16 words, each by its best two.

    Slow: the matrices of each word's experts are gathered, then multiplied one word at a time.
    Fixed: every expert computes all 16 words, and gates of other words are zero.
    """
    tokens, experts, features, hidden = 16, 8, 1024, 2048

    def decode(x: Any, p: Any) -> Any:
        gates, which = jax.lax.top_k(jax.nn.softmax(x.astype(_WIDE) @ p["router"], axis=-1), 2)
        if role == "slow":
            up, down = p["up"][which], p["down"][which]
            inner = jax.nn.gelu(jnp.einsum("tm,tkmf->tkf", x, up))
            results = jnp.einsum("tkf,tkfm->tkm", inner, down)
            return x + jnp.einsum("tkm,tk->tm", results, gates.astype(x.dtype))
        share = jnp.sum(jax.nn.one_hot(which, experts) * gates[..., None], axis=1)
        inner = jax.nn.gelu(jnp.einsum("tm,emf->etf", x, p["up"]))
        results = jnp.einsum("etf,efm->etm", inner, p["down"])
        return x + jnp.einsum("etm,te->tm", results, share.astype(x.dtype))

    parameters = {
        "router": Array((features, experts), _WIDE),
        "up": Array((experts, features, hidden)),
        "down": Array((experts, hidden, features)),
    }
    return Program(decode, (Array((tokens, features)), parameters))


def router_in_float32(role: Role) -> Program:
    """Experts that choose their tokens, by scores of a router.

    Slow: the router works in 32 bits. Fixed: in 16 bits.
    """
    tokens, experts, features, hidden = 8192, 16, 1024, 2048
    capacity = tokens // experts

    def predict(x: Any, p: Any) -> Any:
        if role == "slow":
            scores = x.astype(_WIDE) @ p["router"]
        else:
            scores = x @ p["router"].astype(x.dtype)
        gates = jax.nn.softmax(scores, axis=-1)
        weights, rows = jax.lax.top_k(gates.T, capacity)
        inner = jax.nn.gelu(jnp.einsum("ecm,emf->ecf", x[rows], p["up"]))
        results = jnp.einsum("ecf,efm->ecm", inner, p["down"])
        results = results * weights[..., None].astype(x.dtype)
        return x.at[rows.reshape(-1)].add(results.reshape(-1, features))

    parameters = {
        "router": Array((features, experts), _WIDE),
        "up": Array((experts, features, hidden)),
        "down": Array((experts, hidden, features)),
    }
    return Program(predict, (Array((tokens, features)), parameters))
