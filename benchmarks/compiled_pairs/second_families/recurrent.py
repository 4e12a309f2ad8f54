"""Recurrent networks and state-space models."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from compiled_pairs.program import Array, Program, Role

_WIDE = jnp.float32


def projected_in_the_loop(role: Role) -> Program:
    """An LSTM reads 256 inputs.

    Slow: each step multiplies its input with the input weights.
    Fixed: all inputs are multiplied at once, before the loop.
    """
    steps, batch, features, hidden = 256, 64, 1024, 1024

    def read(state: Any, p: Any, inputs: Any) -> Any:
        def step(state: Any, x: Any) -> Any:
            short, cell = state
            if role == "slow":
                x = x @ p["input"]
            gates = (x + short @ p["hidden"]).astype(_WIDE)
            enter, forget, new, leave = jnp.split(gates, 4, axis=-1)
            cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(enter) * jnp.tanh(new)
            short = (jax.nn.sigmoid(leave) * jnp.tanh(cell)).astype(short.dtype)
            return (short, cell), short

        if role == "fixed":
            inputs = inputs @ p["input"]
        return jax.lax.scan(step, state, inputs)

    parameters = {"input": Array((features, 4 * hidden)), "hidden": Array((hidden, 4 * hidden))}
    state = (Array((batch, hidden)), Array((batch, hidden), _WIDE))
    return Program(read, (state, parameters, Array((steps, batch, features))))


def token_by_token(role: Role) -> Program:
    """Retention with a fixed decay for each head over 1,024 positions.

    Slow: a loop over positions updates the state by outer products.
    Fixed: chunks of 128 positions are computed by matrix products; the loop is over chunks.
    """
    batch, heads, length, width, size = 4, 8, 1024, 64, 128

    def step(query: Any, key: Any, value: Any) -> Any:
        """Each is (batch, heads, length, width)."""
        logs = jnp.log1p(-(2.0 ** (-5.0 - jnp.arange(heads, dtype=_WIDE))))
        state = jnp.zeros((batch, heads, width, width), _WIDE)
        if role == "slow":
            decay = jnp.exp(logs)[:, None, None]

            def one(state: Any, qkv: Any) -> Any:
                q, k, v = (part.astype(_WIDE) for part in qkv)
                state = decay * state + k[..., :, None] * v[..., None, :]
                return state, jnp.einsum("bhd,bhde->bhe", q, state)

            parts = tuple(jnp.moveaxis(x, 2, 0) for x in (query, key, value))
            return jnp.moveaxis(jax.lax.scan(one, state, parts)[1], 0, 2)
        places = jnp.arange(size, dtype=_WIDE)
        distance = places[:, None] - places
        inside = jnp.exp(jnp.where(distance >= 0, distance * logs[:, None, None], -jnp.inf))
        to_start = jnp.exp((places + 1) * logs[:, None])[..., None]
        to_end = jnp.exp((size - 1 - places) * logs[:, None])[..., None]
        whole = jnp.exp(size * logs)[:, None, None]

        def chunk(state: Any, qkv: Any) -> Any:
            q, k, v = (part.astype(_WIDE) for part in qkv)
            scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) * inside
            result = jnp.einsum("bhqk,bhke->bhqe", scores, v)
            result += jnp.einsum("bhqd,bhde->bhqe", q * to_start, state)
            state = whole * state + jnp.einsum("bhkd,bhke->bhde", k * to_end, v)
            return state, result

        shape = (batch, heads, length // size, size, width)
        parts = tuple(jnp.moveaxis(x.reshape(shape), 2, 0) for x in (query, key, value))
        results = jax.lax.scan(chunk, state, parts)[1]
        return jnp.moveaxis(results, 0, 2).reshape(batch, heads, length, width)

    return Program(step, (Array((batch, heads, length, width)),) * 3, donated=())


def gated_units(role: Role) -> Program:
    """A GRU whose inputs are multiplied before the loop and whose state stays wide, healthy."""
    steps, batch, features, hidden = 128, 256, 512, 1024

    def read(state: Any, p: Any, inputs: Any) -> Any:
        def step(state: Any, x: Any) -> Any:
            inner = state.astype(x.dtype) @ p["hidden"]
            (a, b, c), (d, e, f) = (jnp.split(y.astype(_WIDE), 3, axis=-1) for y in (x, inner))
            update, reset = jax.nn.sigmoid(a + d), jax.nn.sigmoid(b + e)
            return update * state + (1 - update) * jnp.tanh(c + reset * f), None

        return jax.lax.scan(step, state, inputs @ p["input"])[0]

    parameters = {"input": Array((features, 3 * hidden)), "hidden": Array((hidden, 3 * hidden))}
    arguments = (Array((batch, hidden), _WIDE), parameters, Array((steps, batch, features)))
    return Program(read, arguments)
