"""Losses of speech, contrastive and language models."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from compiled_pairs.program import Array, Program, Role, training

_WIDE = jnp.float32


def emissions_in_the_loop(role: Role) -> Program:
    """The forward pass of connectionist temporal classification, 256 frames of 4,096 words.

    Slow: each step of the loop normalizes its frame's logits and looks up the labels.
    Fixed: all frames are normalized and looked up before the loop.
    """
    frames, batch, words, labels = 256, 32, 4096, 32
    states = 2 * labels + 1

    def score(logits: Any, targets: Any) -> Any:
        padded = jnp.zeros((batch, states), jnp.int32).at[:, 1::2].set(targets)
        is_new = padded[:, 2:] != padded[:, :-2]
        is_jump = jnp.pad(is_new & (padded[:, 2:] != 0), ((0, 0), (2, 0)))

        def emit(frame: Any) -> Any:
            logs = jax.nn.log_softmax(frame.astype(_WIDE), axis=-1)
            index = jnp.broadcast_to(padded, (*logs.shape[:-1], states))
            return jnp.take_along_axis(logs, index, axis=-1)

        def step(alpha: Any, frame: Any) -> Any:
            if role == "slow":
                frame = emit(frame)
            one = jnp.pad(alpha[:, :-1], ((0, 0), (1, 0)), constant_values=-1e9)
            two = jnp.pad(alpha[:, :-2], ((0, 0), (2, 0)), constant_values=-1e9)
            both = jnp.logaddexp(alpha, one)
            alpha = jnp.where(is_jump, jnp.logaddexp(both, two), both)
            return alpha + frame, None

        start = jnp.full((batch, states), -1e9, _WIDE).at[:, 0].set(0)
        inputs = logits if role == "slow" else emit(logits)
        alpha = jax.lax.scan(step, start, inputs)[0]
        return -jnp.logaddexp(alpha[:, -1], alpha[:, -2])

    arguments = (Array((frames, batch, words)), Array((batch, labels), jnp.int32))
    return Program(score, arguments, donated=())


def similarities_twice(role: Role) -> Program:
    """Training of two projections by a contrastive loss over 4,096 pairs, in both directions.

    Slow: similarities of images to texts and of texts to images are two products.
    Fixed: one product, and its softmax along either axis.
    """
    batch, features, width = 4096, 1024, 512

    def normed(x: Any) -> Any:
        wide = x.astype(_WIDE)
        square = jnp.sum(jnp.square(wide), axis=-1, keepdims=True)
        return (wide * jax.lax.rsqrt(square + 1e-6)).astype(x.dtype)

    def loss(p: Any, images: Any, texts: Any) -> Any:
        first, second = normed(images @ p["image"]), normed(texts @ p["text"])
        own = jnp.sum(first.astype(_WIDE) * second.astype(_WIDE), axis=-1) * 20
        forth = jnp.matmul(first, second.T, preferred_element_type=_WIDE) * 20
        if role == "slow":
            back = jnp.matmul(second, first.T, preferred_element_type=_WIDE) * 20
            sums = jax.nn.logsumexp(forth, axis=1) + jax.nn.logsumexp(back, axis=1)
        else:
            sums = jax.nn.logsumexp(forth, axis=1) + jax.nn.logsumexp(forth, axis=0)
        return jnp.mean(sums / 2 - own)

    parameters = {"image": Array((features, width)), "text": Array((features, width))}
    batch_of = Array((batch, features))
    return training(loss, parameters, batch_of, batch_of)


def one_hot_loss(role: Role) -> Program:
    """Training of a language model's head with 16,384 words.

    Slow: the loss multiplies logarithms of probabilities with one-hot labels.
    Fixed: the label's logarithm is looked up by index.
    """
    tokens, features, words = 4096, 1024, 16_384

    def loss(p: Any, x: Any, labels: Any) -> Any:
        x = x + jax.nn.gelu(x @ p["up"]) @ p["down"]
        logs = jax.nn.log_softmax((x @ p["head"]).astype(_WIDE), axis=-1)
        if role == "slow":
            return -jnp.mean(jnp.sum(jax.nn.one_hot(labels, words) * logs, axis=-1))
        return -jnp.mean(jnp.take_along_axis(logs, labels[:, None], axis=-1))

    parameters = {
        "up": Array((features, 4096)),
        "down": Array((4096, features)),
        "head": Array((features, words)),
    }
    return training(loss, parameters, Array((tokens, features)), Array((tokens,), jnp.int32))
