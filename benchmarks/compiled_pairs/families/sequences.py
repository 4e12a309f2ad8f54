"""Recurrences and state spaces."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from compiled_pairs.program import Array, Program, Role

_WIDE = jnp.float32


def _cell(state: Any, gates: Any) -> Any:
    _, memory = state
    into, forget, new, out = jnp.split(gates, 4, axis=-1)
    memory = jax.nn.sigmoid(forget) * memory + jax.nn.sigmoid(into) * jnp.tanh(new)
    return jax.nn.sigmoid(out) * jnp.tanh(memory), memory


def inputs_in_loop(role: Role) -> Program:
    """A recurrence multiplies its input in each of 256 steps, or all inputs at once before."""
    time, batch, width = 256, 32, 1024

    def predict(p: Any, x: Any) -> Any:
        def step(state: Any, x: Any) -> Any:
            gates = x @ p["in"] if role == "slow" else x
            state = _cell(state, gates + state[0] @ p["again"])
            return state, state[0]

        if role == "fixed":
            x = x @ p["in"]
        zeros = jnp.zeros((batch, width), jnp.bfloat16)
        return jax.lax.scan(step, (zeros, zeros), x)[1]

    parameters = {"in": Array((width, 4 * width)), "again": Array((width, 4 * width))}
    return Program(predict, (parameters, Array((time, batch, width))), donated=())


def recurrence(role: Role) -> Program:
    """A recurrence whose inputs are multiplied at once, over a large batch."""
    time, batch, width = 64, 512, 512

    def predict(p: Any, x: Any) -> Any:
        def step(state: Any, x: Any) -> Any:
            state = _cell(state, x + state[0] @ p["again"])
            return state, state[0]

        zeros = jnp.zeros((batch, width), jnp.bfloat16)
        return jax.lax.scan(step, (zeros, zeros), x @ p["in"])[1]

    parameters = {"in": Array((width, 4 * width)), "again": Array((width, 4 * width))}
    return Program(predict, (parameters, Array((time, batch, width))), donated=())


def state_by_state(role: Role) -> Program:
    """A linear state space steps through 1,024 positions, or through 16 blocks of 64."""
    time, batch, width, block = 1024, 8, 1024, 64

    def predict(decay: Any, x: Any) -> Any:
        if role == "slow":

            def step(state: Any, x: Any) -> Any:
                state = decay * state + x.astype(_WIDE)
                return state, state.astype(x.dtype)

            return jax.lax.scan(step, jnp.zeros((batch, width), _WIDE), x)[1]
        rates = jnp.log(decay)
        steps = jnp.arange(1, block + 1, dtype=_WIDE)
        places = steps[:, None] - steps
        weights = jnp.where(places[..., None] >= 0, jnp.exp(places[..., None] * rates), 0)
        within = jnp.exp(steps[:, None] * rates)

        def step_of_block(state: Any, x: Any) -> Any:
            parts = jnp.einsum("tsw,sbw->tbw", weights.astype(x.dtype), x).astype(_WIDE)
            states = parts + within[:, None] * state
            return states[-1], states.astype(x.dtype)

        blocks = x.reshape(time // block, block, batch, width)
        last = jax.lax.scan(step_of_block, jnp.zeros((batch, width), _WIDE), blocks)[1]
        return last.reshape(x.shape)

    return Program(predict, (Array((width,), _WIDE), Array((time, batch, width))), donated=())


def reversed_twice(role: Role) -> Program:
    """The backward half of a bidirectional recurrence flips its arrays, or scans in reverse."""
    time, batch, width = 128, 128, 512

    def predict(p: Any, x: Any) -> Any:
        def step(hidden: Any, x: Any) -> Any:
            hidden = jnp.tanh(x + hidden @ p["again"])
            return hidden, hidden

        inputs = x @ p["in"]
        zeros = jnp.zeros((batch, width), jnp.bfloat16)
        onward = jax.lax.scan(step, zeros, inputs)[1]
        if role == "slow":
            back = jnp.flip(jax.lax.scan(step, zeros, jnp.flip(inputs, 0))[1], 0)
        else:
            back = jax.lax.scan(step, zeros, inputs, reverse=True)[1]
        return onward + back

    parameters = {"in": Array((width, width)), "again": Array((width, width))}
    return Program(predict, (parameters, Array((time, batch, width))), donated=())
