"""Recommenders and networks over graphs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from compiled_pairs.families.language import adam
from compiled_pairs.program import Array, Program, Role, mean_square

_WIDE = jnp.float32


def moments_of_all_rows(role: Role) -> Program:
    """Adam over all rows of a table, or over those that were looked up."""
    rows, width, batch = 262_144, 128, 4096

    def loss(looked_up: Any, p: Any) -> Any:
        return mean_square(jax.nn.relu(looked_up.astype(jnp.bfloat16) @ p))

    def train_step(state: Any, indices: Any, p: Any) -> Any:
        table, means, squares = state
        if role == "slow":
            gradient = jax.grad(lambda t: loss(t[indices], p))(table)
            means = 0.9 * means + 0.1 * gradient
            squares = 0.99 * squares + 0.01 * gradient**2
            return table - 1e-3 * means / (jnp.sqrt(squares) + 1e-8), means, squares
        gradient = jax.grad(loss)(table[indices], p)
        mean = 0.9 * means[indices] + 0.1 * gradient
        square = 0.99 * squares[indices] + 0.01 * gradient**2
        change = -1e-3 * mean / (jnp.sqrt(square) + 1e-8)
        return (
            table.at[indices].add(change),
            means.at[indices].set(mean),
            squares.at[indices].set(square),
        )

    table = Array((rows, width), _WIDE)
    arguments = ((table,) * 3, Array((batch,), jnp.int32), Array((width, 512)))
    return Program(train_step, arguments)


def features_by_one_hot(role: Role) -> Program:
    """Categories of 4,096 values are one-hot vectors before the first layer, or rows of it."""
    batch, fields, values, width = 2048, 8, 4096, 128

    def predict(indices: Any, p: Any) -> Any:
        if role == "slow":
            x = jax.nn.one_hot(indices, values, dtype=jnp.bfloat16)
            x = jnp.einsum("bfv,fvw->bfw", x, p["first"])
        else:
            x = jax.vmap(lambda table, i: table[i], in_axes=(0, 1), out_axes=1)(p["first"], indices)
        x = x.reshape(batch, fields * width)
        return jax.nn.relu(x @ p["up"]) @ p["down"]

    parameters = {
        "first": Array((fields, values, width)),
        "up": Array((fields * width, 1024)),
        "down": Array((1024, 128)),
    }
    return Program(predict, (Array((batch, fields), jnp.int32), parameters), donated=())


def towers(role: Role) -> Program:
    """Training of two towers with the other samples of the batch as negatives."""
    batch, width = 4096, 512

    def loss(p: Any, users: Any, items: Any) -> Any:
        users, items = (
            jax.nn.relu(x @ p[name].astype(x.dtype)) @ p["out"].astype(x.dtype)
            for name, x in (("users", users), ("items", items))
        )
        logits = (users @ items.T).astype(_WIDE)
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - jnp.diagonal(logits))

    parameters = {name: Array((width, 2048), _WIDE) for name in ("users", "items")}
    parameters["out"] = Array((2048, 256), _WIDE)
    return adam(loss, parameters, Array((batch, width)), Array((batch, width)))


def pairs_of_fields(role: Role) -> Program:
    """Products of all pairs of fields, of which the upper half is used, or of all."""
    batch, fields, width = 8192, 32, 128

    def predict(x: Any, p: Any) -> Any:
        pairs = jnp.einsum("bfw,bgw->bfg", x, x)
        if role == "slow":
            rows, columns = jnp.triu_indices(fields, 1)
            flat = pairs.reshape(batch, -1)[:, rows * fields + columns]
            return jax.nn.relu(flat @ p[: flat.shape[1]])
        return jax.nn.relu(pairs.reshape(batch, -1) @ p)

    return Program(predict, (Array((batch, fields, width)), Array((fields**2, 512))), donated=())


def messages_by_edge(role: Role) -> Program:
    """A layer over the two ends of each edge, or over each node before the edges gather it."""
    nodes, edges, width, hidden = 8192, 131_072, 128, 256

    def predict(x: Any, ends: Any, p: Any) -> Any:
        if role == "slow":
            both = jnp.concatenate([x[ends[0]], x[ends[1]]], axis=-1)
            messages = jax.nn.relu(both @ jnp.concatenate([p["from"], p["to"]]))
        else:
            messages = jax.nn.relu((x @ p["from"])[ends[0]] + (x @ p["to"])[ends[1]])
        gathered = jax.ops.segment_sum(messages, ends[1], nodes)
        return gathered @ p["out"]

    parameters = {
        "from": Array((width, hidden)),
        "to": Array((width, hidden)),
        "out": Array((hidden, width)),
    }
    arguments = (Array((nodes, width)), Array((2, edges), jnp.int32), parameters)
    return Program(predict, arguments, donated=())


def widened_messages(role: Role) -> Program:
    """Nodes are widened by a layer before their neighbors are summed, or after it."""
    nodes, edges, width, hidden = 8192, 65_536, 128, 1024

    def predict(x: Any, ends: Any, p: Any) -> Any:
        if role == "slow":
            x = jax.ops.segment_sum((x @ p["in"])[ends[0]], ends[1], nodes)
        else:
            x = jax.ops.segment_sum(x[ends[0]], ends[1], nodes) @ p["in"]
        return jax.nn.relu(x) @ p["out"]

    parameters = {"in": Array((width, hidden)), "out": Array((hidden, width))}
    arguments = (Array((nodes, width)), Array((2, edges), jnp.int32), parameters)
    return Program(predict, arguments, donated=())


def neighbors(role: Role) -> Program:
    """Sums over neighbors that come as a table of 16 for each node."""
    nodes, count, width = 16_384, 16, 128

    def predict(x: Any, table: Any, p: Any) -> Any:
        mean = jnp.mean(x[table].astype(_WIDE), axis=1).astype(x.dtype)
        return jax.nn.relu(x @ p["own"] + mean @ p["others"])

    parameters = {"own": Array((width, 256)), "others": Array((width, 256))}
    arguments = (Array((nodes, width)), Array((nodes, count), jnp.int32), parameters)
    return Program(predict, arguments, donated=())
