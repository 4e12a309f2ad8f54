"""Results that nobody uses, products in the wrong order, and updates of what stays the same."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from compiled_pairs.convolutions import convolve
from compiled_pairs.program import Array, Program, Role


def sliced_convolution(role: Role) -> Program:
    """Every other result of a convolution is dropped, or never computed."""

    def predict(images: Any, kernels: Any) -> Any:
        images = jax.nn.relu(convolve(images, kernels[0]))
        if role == "slow":
            images = jax.nn.relu(convolve(images, kernels[1]))
            return images[:, ::2, ::2]
        return jax.nn.relu(convolve(images, kernels[1], stride=2))

    kernels = [Array((3, 3, 128, 128)), Array((3, 3, 128, 256))]
    return Program(predict, (Array((32, 64, 64, 128)), kernels), donated=())


def dense_table_update(role: Role) -> Program:
    """All rows of a table are updated, or those that were looked up."""
    rows, width, batch = 500_000, 128, 8192

    def loss(looked_up: Any, weights: Any) -> Any:
        return jnp.mean(jnp.square(jax.nn.relu(looked_up @ weights).astype(jnp.float32)))

    def train_step(table: Any, indices: Any, weights: Any) -> Any:
        if role == "slow":
            gradient = jax.grad(lambda t: loss(t[indices], weights))(table)
            return table - 0.01 * gradient
        gradient = jax.grad(loss)(table[indices], weights)
        return table.at[indices].add(-0.01 * gradient)

    arguments = (
        Array((rows, width), jnp.float32),
        Array((batch,), jnp.int32),
        Array((width, 512), jnp.float32),
    )
    return Program(train_step, arguments)


def order_of_products(role: Role) -> Program:
    """An activation by the product of two factors, or by one factor after the other."""

    def predict(x: Any, layers: Any) -> Any:
        for layer in layers:
            low, high = layer["low"], layer["high"]
            x = x @ (low @ high) if role == "slow" else (x @ low) @ high
            x = jax.nn.relu(x)
        return x

    layer = {"low": Array((4096, 64)), "high": Array((64, 4096))}
    return Program(predict, (Array((2048, 4096)), [layer] * 3))


def many_updates(role: Role) -> Program:
    """An optimizer over many small arrays, or over one."""
    count, size = 256, 8192

    def update(state: Any, gradients: Any) -> Any:
        def one(state: Any, gradient: Any) -> Any:
            parameter, mean, square = state
            mean = 0.9 * mean + 0.1 * gradient
            square = 0.999 * square + 0.001 * gradient**2
            return parameter - 0.001 * mean / (jnp.sqrt(square) + 1e-8), mean, square

        if role == "fixed":
            return one(state, gradients)
        return [one(parts, g) for parts, g in zip(state, gradients, strict=True)]

    if role == "fixed":
        whole = Array((count * size,), jnp.float32)
        return Program(update, ((whole,) * 3, whole))
    small = Array((size,), jnp.float32)
    return Program(update, ([(small,) * 3] * count, [small] * count))


def one_hot_routing(role: Role) -> Program:
    """Tokens go to experts by products with one-hot matrices, or by index."""
    tokens, features, hidden, experts, chosen = 2048, 512, 2048, 16, 2
    capacity = 2 * tokens * chosen // experts

    def predict(x: Any, router: Any, up: Any, down: Any) -> Any:
        gates, choice = jax.lax.top_k(jax.nn.softmax((x @ router).astype(jnp.float32)), chosen)
        is_chosen = jax.nn.one_hot(choice, experts, dtype=jnp.int32)  # tke
        ranks = jnp.cumsum(is_chosen.reshape(tokens * chosen, experts), axis=0)
        place = (ranks.reshape(tokens, chosen, experts) * is_chosen).sum(-1) - 1
        if role == "slow":
            slot = jax.nn.one_hot(place, capacity, dtype=x.dtype)  # tkc
            spread = jnp.einsum("tke,tkc->tkec", is_chosen.astype(x.dtype), slot)
            dispatch = spread.sum(1)
            combine = jnp.einsum("tk,tkec->tec", gates.astype(x.dtype), spread)
            inputs = jnp.einsum("tec,tf->ecf", dispatch, x)
            outputs = _experts(inputs, up, down)
            return jnp.einsum("tec,ecf->tf", combine, outputs)
        slots = choice * capacity + jnp.minimum(place, capacity - 1)
        token_of_slot = jnp.zeros((experts * capacity,), jnp.int32)
        token_of_slot = token_of_slot.at[slots.reshape(-1)].set(
            jnp.repeat(jnp.arange(tokens, dtype=jnp.int32), chosen)
        )
        inputs = x[token_of_slot].reshape(experts, capacity, features)
        outputs = _experts(inputs, up, down).reshape(experts * capacity, features)
        return jnp.einsum("tk,tkf->tf", gates.astype(x.dtype), outputs[slots])

    arguments = (
        Array((tokens, features)),
        Array((features, experts)),
        Array((experts, features, hidden)),
        Array((experts, hidden, features)),
    )
    return Program(predict, arguments, donated=())


def _experts(inputs: Any, up: Any, down: Any) -> Any:
    hidden = jax.nn.gelu(jnp.einsum("ecf,efh->ech", inputs, up))
    return jnp.einsum("ech,ehf->ecf", hidden, down)
