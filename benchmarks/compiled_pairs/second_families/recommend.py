"""Recommenders with tables of embeddings."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from compiled_pairs.program import Array, Program, Role, descend, mean_square

_WIDE = jnp.float32


def dense_table_gradient(role: Role) -> Program:
    """Training with a table of 400,000 rows, of which a batch uses at most 8,192.

    Slow: the gradient is an array of the table's size, and all rows are updated.
    Fixed: the gradient of the rows that were looked up is added to these rows.
    """
    rows, width, batch = 400_000, 128, 8192

    def score(looked_up: Any, p: Any, dense: Any) -> Any:
        x = jnp.concatenate([looked_up.astype(dense.dtype), dense], axis=-1)
        return mean_square(jax.nn.relu(x @ p["in"]) @ p["out"] - 1)

    def train_step(state: Any, ids: Any, dense: Any) -> Any:
        table, p = state
        if role == "slow":
            gradients = jax.grad(lambda t, p: score(t[ids], p, dense), (0, 1))(table, p)
            return descend((table, p), gradients)
        of_rows, of_layers = jax.grad(score, (0, 1))(table[ids], p, dense)
        return table.at[ids].add(-0.01 * of_rows), descend(p, of_layers)

    layers = {"in": Array((2 * width, 1024)), "out": Array((1024, 128))}
    arguments = (
        (Array((rows, width), _WIDE), layers),
        Array((batch,), jnp.int32),
        Array((batch, width)),
    )
    return Program(train_step, arguments)


def triangle_by_gather(role: Role) -> Program:
    """Products of all pairs of 27 features go to a layer without the pairs' order.

    Slow: the lower triangle of each example's products is picked by index arrays.
    Fixed: the layer's weights are spread over the square, with zeros, and all products used.
    """
    batch, count, width, hidden = 8192, 27, 64, 512
    pairs = count * (count - 1) // 2

    def predict(features: Any, p: Any) -> Any:
        products = jnp.einsum("bid,bjd->bij", features, features)
        rows, columns = np.tril_indices(count, -1)
        if role == "slow":
            x = products[:, rows, columns] @ p["in"]
        else:
            square = jnp.zeros((count, count, hidden), p["in"].dtype)
            square = square.at[rows, columns].set(p["in"]).reshape(count * count, hidden)
            x = products.reshape(batch, count * count) @ square
        return jax.nn.relu(x) @ p["out"]

    parameters = {"in": Array((pairs, hidden)), "out": Array((hidden, 128))}
    return Program(predict, (Array((batch, count, width)), parameters), donated=())


def two_towers(role: Role) -> Program:
    """Training of two towers with a softmax over the batch and updates of rows, without a fault."""
    rows, width, batch, hidden = 200_000, 128, 4096, 1024

    def tower(p: Any, x: Any) -> Any:
        x = jax.nn.relu(x.astype(jnp.bfloat16) @ p["in"]) @ p["out"]
        wide = x.astype(_WIDE)
        norm = jax.lax.rsqrt(jnp.sum(jnp.square(wide), axis=-1, keepdims=True) + 1e-6)
        return (wide * norm).astype(x.dtype)

    def loss(users: Any, items: Any, p: Any) -> Any:
        first, second = tower(p["user"], users), tower(p["item"], items)
        logits = jnp.matmul(first, second.T, preferred_element_type=_WIDE) * 20
        own = jnp.sum(first.astype(_WIDE) * second.astype(_WIDE), axis=-1) * 20
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - own)

    def train_step(state: Any, users: Any, items: Any) -> Any:
        (user_table, item_table), p = state
        gradients = jax.grad(loss, (0, 1, 2))(user_table[users], item_table[items], p)
        user_table = user_table.at[users].add(-0.01 * gradients[0])
        item_table = item_table.at[items].add(-0.01 * gradients[1])
        return (user_table, item_table), descend(p, gradients[2])

    layers = {"in": Array((width, hidden)), "out": Array((hidden, 256))}
    table, ids = Array((rows, width), _WIDE), Array((batch,), jnp.int32)
    return Program(train_step, (((table, table), {"user": layers, "item": layers}), ids, ids))
