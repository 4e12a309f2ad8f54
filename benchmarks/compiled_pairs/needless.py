"""Programs that compute what nobody needs, each written as people write it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from compiled_pairs.program import (
    Array,
    Program,
    Role,
    dense,
    dense_parameters,
    descend,
    mean_square,
    training,
)


def masked_positions(role: Role) -> Program:
    """Training on an eighth of the positions, which are taken from scores or from states."""

    def loss(parameters: Any, x: Any, places: Any, words: Any) -> Any:
        x = dense(parameters["layer"], x)
        if role == "fixed":
            x = jnp.take_along_axis(x, places[..., None], axis=1)
        scores = jnp.matmul(x, parameters["words"], preferred_element_type=jnp.float32)
        logs = jax.nn.log_softmax(scores)
        if role == "slow":
            logs = jnp.take_along_axis(logs, places[..., None], axis=1)
        return -jnp.mean(jnp.take_along_axis(logs, words[..., None], axis=-1))

    parameters = {"layer": dense_parameters(512, 2048), "words": Array((512, 16_384))}
    places = Array((16, 64), jnp.int32)
    return training(loss, parameters, Array((16, 512, 512)), places, places)


def examples_in_loop(role: Role) -> Program:
    """Attention of a query over memories, example by example or for all at once."""

    def read(x: Any, memory: Any, weights: Any) -> Any:
        def example(x: Any, memory: Any) -> Any:
            query = x @ weights["query"]
            scores = jax.nn.softmax((query @ memory.T).astype(jnp.float32)).astype(x.dtype)
            return x + (scores @ memory) @ weights["out"]

        if role == "slow":
            return jax.lax.map(lambda each: example(*each), (x, memory))
        return jax.vmap(example)(x, memory)

    weights = {"query": Array((512, 512)), "out": Array((512, 512))}
    return Program(read, (Array((128, 16, 512)), Array((128, 256, 512)), weights), donated=())


def second_forward(role: Role) -> Program:
    """Training whose accuracy comes from a second forward pass, or from the one with dropout."""

    def forward(parameters: Any, x: Any, keep: Any) -> Any:
        for layer in parameters["layers"]:
            x = dense(layer, x if keep is None else x * keep)
        return jnp.matmul(x, parameters["head"], preferred_element_type=jnp.float32)

    def train_step(parameters: Any, x: Any, keep: Any, labels: Any) -> Any:
        def loss(parameters: Any) -> Any:
            scores = forward(parameters, x, keep)
            logs = jax.nn.log_softmax(scores)
            return -jnp.mean(jnp.take_along_axis(logs, labels[:, None], axis=-1)), scores

        (value, scores), gradients = jax.value_and_grad(loss, has_aux=True)(parameters)
        if role == "slow":
            scores = forward(parameters, x, None)
        correct = jnp.mean(jnp.argmax(scores, axis=-1) == labels)
        return descend(parameters, gradients), value, correct

    parameters = {"layers": [dense_parameters(1024, 4096)] * 3, "head": Array((1024, 1024))}
    x = Array((8192, 1024))
    return Program(train_step, (parameters, x, x, Array((8192,), jnp.int32)))


def pages_by_one_hot(role: Role) -> Program:
    """Pages of a cache by a product with one-hot rows, or by index."""

    def attend(query: Any, pages: Any, table: Any) -> Any:
        if role == "slow":
            chosen = jax.nn.one_hot(table, pages.shape[0], dtype=pages.dtype)
            keys = jnp.einsum("bpn,nsf->bpsf", chosen, pages)
        else:
            keys = pages[table]
        keys = keys.reshape(query.shape[0], -1, query.shape[-1])
        scores = jnp.einsum("bqf,bkf->bqk", query, keys).astype(jnp.float32)
        return jnp.einsum("bqk,bkf->bqf", jax.nn.softmax(scores).astype(query.dtype), keys)

    arguments = (Array((16, 16, 128)), Array((2048, 32, 128)), Array((16, 32), jnp.int32))
    return Program(attend, arguments, donated=())


def chosen_by_where(role: Role) -> Program:
    """Layers that few steps need, chosen by `where` or by a branch."""

    def step(x: Any, is_due: Any, parameters: Any) -> Any:
        x = dense(parameters["always"], x)

        def refined(x: Any) -> Any:
            for layer in parameters["sometimes"]:
                x = dense(layer, x)
            return x

        if role == "slow":
            return jnp.where(is_due, refined(x), x)
        return jax.lax.cond(is_due, refined, lambda x: x, x)

    parameters = {
        "always": dense_parameters(1024, 4096),
        "sometimes": [dense_parameters(1024, 4096)] * 3,
    }
    return Program(step, (Array((4096, 1024)), Array((), jnp.bool_), parameters), donated=())


def tiny_systems(role: Role) -> Program:
    """Many linear systems of three unknowns by a factorization, or by cross products."""

    def fit(x: Any, y: Any) -> Any:
        squares = jnp.einsum("nki,nkj->nij", x, x) + 0.1 * jnp.eye(3)
        right = jnp.einsum("nki,nk->ni", x, y)
        if role == "slow":
            return jnp.linalg.solve(squares, right[..., None])[..., 0]
        a, b, c = squares[:, 0], squares[:, 1], squares[:, 2]
        columns = jnp.stack([jnp.cross(b, c), jnp.cross(c, a), jnp.cross(a, b)], axis=-1)
        volume = jnp.sum(a * columns[..., 0], axis=-1, keepdims=True)
        return jnp.einsum("nij,nj->ni", columns, right) / volume

    return Program(
        fit, (Array((16_384, 8, 3), jnp.float32), Array((16_384, 8), jnp.float32)), donated=()
    )


def tokens_by_all_experts(role: Role) -> Program:
    """Each token by all experts, of which one counts, or by the one that it chooses."""
    tokens, experts, features, hidden = 4096, 8, 512, 2048

    def layer(x: Any, weights: Any) -> Any:
        shares = jax.nn.softmax((x @ weights["gate"]).astype(jnp.float32))
        best = jnp.argmax(shares, axis=-1)
        share = jnp.max(shares, axis=-1, keepdims=True).astype(x.dtype)
        if role == "slow":
            h = jax.nn.gelu(jnp.einsum("tf,efh->teh", x, weights["up"]))
            y = jnp.einsum("teh,ehf->tef", h, weights["down"])
            chosen = jax.nn.one_hot(best, experts, dtype=x.dtype)
            return x + share * jnp.einsum("tef,te->tf", y, chosen)
        order = jnp.argsort(best)
        rows = x[order].reshape(experts, tokens // experts, features)
        h = jax.nn.gelu(jnp.einsum("ecf,efh->ech", rows, weights["up"]))
        y = jnp.einsum("ech,ehf->ecf", h, weights["down"]).reshape(tokens, features)
        return x + share * jnp.zeros_like(x).at[order].set(y, unique_indices=True)

    weights = {
        "gate": Array((features, experts)),
        "up": Array((experts, features, hidden)),
        "down": Array((experts, hidden, features)),
    }
    return Program(layer, (Array((tokens, features)), weights), donated=())


def gradients_times_zero(role: Role) -> Program:
    """Training of a head whose other gradients are multiplied by zero, or never computed."""

    def loss(parameters: Any, x: Any) -> Any:
        for layer in parameters["layers"]:
            x = dense(layer, x)
        if role == "fixed":
            x = jax.lax.stop_gradient(x)
        return mean_square(x @ parameters["head"])

    def train_step(parameters: Any, x: Any) -> Any:
        gradients = jax.grad(loss)(parameters, x)
        scales = {"layers": 0.0, "head": 1.0}
        if role == "fixed":
            return parameters | {"head": descend(parameters["head"], gradients["head"])}
        scaled = {
            name: jax.tree.map(lambda g, scale=scales[name]: g * scale, of)
            for name, of in gradients.items()
        }
        return descend(parameters, scaled)

    parameters = {"layers": [dense_parameters(1024, 4096)] * 3, "head": Array((1024, 1024))}
    return Program(train_step, (parameters, Array((4096, 1024))))


def shared_by_examples(role: Role) -> Program:
    """A prompt that all examples share, encoded for each of them or once."""

    def encode(prompt: Any, x: Any, parameters: Any) -> Any:
        def encoded(prompt: Any) -> Any:
            for layer in parameters["layers"]:
                prompt = dense(layer, prompt)
            return prompt

        if role == "slow":
            prompts = encoded(jnp.broadcast_to(prompt, (x.shape[0], *prompt.shape)))
        else:
            prompts = jnp.broadcast_to(encoded(prompt), (x.shape[0], *prompt.shape))
        scores = jnp.einsum("bqf,bkf->bqk", x, prompts).astype(jnp.float32)
        return jnp.einsum("bqk,bkf->bqf", jax.nn.softmax(scores).astype(x.dtype), prompts)

    arguments = (Array((128, 512)), Array((32, 128, 512)))
    return Program(encode, (*arguments, {"layers": [dense_parameters(512, 2048)] * 2}), donated=())


def summed_after_expanding(role: Role) -> Program:
    """Features of pairs by a layer on both joined, or by a layer on each and their sum."""

    def pair(x: Any, y: Any, weights: Any) -> Any:
        shape = (x.shape[0], y.shape[0], x.shape[1])
        if role == "slow":
            joined = jnp.concatenate(
                [jnp.broadcast_to(x[:, None], shape), jnp.broadcast_to(y[None], shape)], axis=-1
            )
            h = joined @ weights["in"]
        else:
            first, second = jnp.split(weights["in"], 2)
            h = (x @ first)[:, None] + (y @ second)[None]
        return jax.nn.relu(h) @ weights["out"]

    weights = {"in": Array((512, 256)), "out": Array((256, 8))}
    return Program(pair, (Array((512, 256)), Array((512, 256)), weights), donated=())
