"""Steps in JAX."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np

Step = Callable[[], Any]


def _weights(*sizes: int) -> list[Any]:
    keys = jax.random.split(jax.random.key(0), len(sizes))
    shapes = zip(keys, pairwise(sizes), strict=False)
    return [0.05 * jax.random.normal(key, shape) for key, shape in shapes]


def _predict(weights: list[Any], x: Any) -> Any:
    for weight in weights[:-1]:
        x = jax.nn.relu(x @ weight)
    return x @ weights[-1]


def _loss(weights: list[Any], x: Any) -> Any:
    return jnp.mean(jnp.square(_predict(weights, x)))


def _descend(weights: list[Any], x: Any) -> list[Any]:
    return [w - 0.01 * g for w, g in zip(weights, jax.grad(_loss)(weights, x), strict=True)]


def _train(update: Any, weights: Any, batch: Callable[[], Any]) -> Step:
    def step() -> None:
        nonlocal weights
        weights = jax.block_until_ready(update(weights, batch()))

    return step


def arrays_of_numpy(is_slow: bool) -> Step:
    """32 MB of NumPy arrays in each call, or put on the device once."""
    rng = np.random.default_rng(0)
    table = rng.standard_normal((16_384, 512), np.float32)
    rows = np.arange(0, 16_384, 64)
    if not is_slow:
        table, rows = jax.device_put(table), jax.device_put(rows)
    look_up = jax.jit(lambda table, rows, w: jnp.tanh(table[rows] @ w))
    weight = _weights(512, 64)[0]
    return lambda: look_up(table, rows, weight).block_until_ready()


def doubles(is_slow: bool) -> Step:
    """Float64, or float32."""
    jax.config.update("jax_enable_x64", is_slow)
    dtype = np.float64 if is_slow else np.float32
    weights = [np.asarray(w, dtype) for w in _weights(512, 1024, 1024, 10)]
    x = np.ones((512, 512), dtype)
    return _train(jax.jit(_descend), weights, lambda: x)


def fetched_outputs(is_slow: bool) -> Step:
    """All outputs are fetched and ranked by NumPy, or on the device."""
    weights, x = _weights(256, 512, 8192), jnp.ones((256, 256))
    predict = jax.jit(_predict)
    rank = jax.jit(lambda w, x: jnp.mean(jnp.argmax(_predict(w, x), axis=-1)))

    def step() -> float:
        if is_slow:
            outputs = jax.device_get(predict(weights, x))
            return float(np.argsort(-outputs, axis=-1)[:, 0].mean())
        return float(rank(weights, x))

    return step


def called_back(is_slow: bool) -> Step:
    """Statistics by a callback inside the step, or computed in it."""
    seen: list[float] = []

    def record(x: Any) -> None:
        seen.append(float(np.percentile(np.abs(x), 99)))

    def update(weights: list[Any], x: Any) -> list[Any]:
        gradients = jax.grad(_loss)(weights, x)
        for gradient in gradients:
            if is_slow:
                jax.debug.callback(record, gradient, ordered=True)
        return [w - 0.01 * g for w, g in zip(weights, gradients, strict=True)]

    x = jnp.ones((128, 512))
    return _train(jax.jit(update), _weights(512, 1024, 512), lambda: x)


def words_one_by_one(is_slow: bool) -> Step:
    """A call for each word, or a loop in the program."""
    count = 128
    embedding, state_of, words_of = _weights(64, 64, 64, 512)
    embedding = jnp.ones((512, 64))

    def one(state: Any, word: Any) -> tuple[Any, Any]:
        state = jnp.tanh(state @ state_of + embedding[word])
        return state, jnp.argmax(state @ words_of)

    step_of_one = jax.jit(one)

    def many(state: Any, word: Any) -> Any:
        return jax.lax.scan(lambda c, _: (one(*c), c[1]), (state, word), None, length=count)[1]

    all_at_once = jax.jit(many)

    def step() -> Any:
        state, word = jnp.zeros(64), jnp.zeros((), jnp.int32)
        if not is_slow:
            return all_at_once(state, word).block_until_ready()
        words = []
        for _ in range(count):
            state, word = step_of_one(state, word)
            words.append(word)
        return jax.block_until_ready(words)

    return step


def samples_one_by_one(is_slow: bool) -> Step:
    """A call for each sample, or one for the batch."""
    weights = _weights(64, 128, 128, 10)
    samples = list(np.random.default_rng(0).standard_normal((96, 64), np.float32))
    update = jax.jit(jax.grad(_loss))
    whole = jax.jit(lambda w, x: jax.tree.map(lambda g: g / 96, jax.grad(_loss)(w, x)))

    def step() -> Any:
        if not is_slow:
            return jax.block_until_ready(whole(weights, np.stack(samples)))
        total = None
        for sample in samples:
            gradient = update(weights, sample)
            total = gradient if total is None else jax.tree.map(jnp.add, total, gradient)
        return jax.block_until_ready(total)

    return step


def new_shapes(is_slow: bool) -> Step:
    """A new shape in each step, or padded."""
    number = 0

    def batch() -> Any:
        nonlocal number
        number += 1
        return np.ones((256 - number % 200 if is_slow else 256, 256), np.float32)

    return _train(jax.jit(_descend), _weights(256, 512, 10), batch)


def updates_outside(is_slow: bool) -> Step:
    """An optimizer outside of jit, or inside."""
    weights, x = _weights(*[96] * 41), jnp.ones((64, 96))
    means = [jnp.zeros_like(w) for w in weights]
    gradient = jax.jit(jax.grad(_loss))

    def apply(weights: Any, means: Any, gradients: Any) -> Any:
        means = [0.9 * m + 0.1 * g for m, g in zip(means, gradients, strict=True)]
        return [w - 0.01 * m for w, m in zip(weights, means, strict=True)], means

    inside = jax.jit(lambda w, m, x: apply(w, m, jax.grad(_loss)(w, x)))

    def step() -> None:
        nonlocal weights, means
        if is_slow:
            weights, means = apply(weights, means, gradient(weights, x))
        else:
            weights, means = inside(weights, means, x)
        jax.block_until_ready(weights)

    return step


def made_by_numpy(is_slow: bool) -> Step:
    """Batches are augmented by NumPy between steps, or ahead."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (256, 40, 40, 3), np.uint8)
    first = np.ones((256, 32 * 32 * 3), np.float32)

    def make() -> Any:
        if not is_slow:
            return first
        parts = []
        for image in images:
            top, left = rng.integers(0, 8, 2)
            part = image[top : top + 32, left : left + 32].astype(np.float32)
            if rng.random() < 0.5:
                part = part[:, ::-1]
            parts.append((part / 255 - 0.45) / 0.22 + rng.normal(0, 0.1, part.shape))
        return np.stack(parts).reshape(256, -1).astype(np.float32)

    return _train(jax.jit(_descend), _weights(3072, 512, 10), make)


def products(is_slow: bool) -> Step:
    """Large products in one call."""
    x = jnp.ones((512, 1024))
    return _train(jax.jit(_descend), _weights(1024, 2048, 1024), lambda: x)


def sorted_in_step(is_slow: bool) -> Step:
    """Gradients are sorted for their median, or scaled by their mean."""

    def update(weights: list[Any], x: Any) -> list[Any]:
        gradients = jax.grad(_loss)(weights, x)

        def scale(g: Any) -> Any:
            flat = jnp.abs(g).reshape(-1)
            return jnp.sort(flat)[flat.size // 2] if is_slow else jnp.mean(flat)

        return [w - 0.01 * g / (1 + scale(g)) for w, g in zip(weights, gradients, strict=True)]

    x = jnp.ones((256, 512))
    return _train(jax.jit(update), _weights(512, 512, 10), lambda: x)


def one_hot_words(is_slow: bool) -> Step:
    """Words are looked up by a product with one-hot rows, or gathered."""
    words = jnp.asarray(np.random.default_rng(0).integers(0, 8192, (512,)))
    parameters = (jnp.ones((8192, 128)), *_weights(128, 512, 10))

    def loss(p: Any, words: Any) -> Any:
        x = jax.nn.one_hot(words, 8192) @ p[0] if is_slow else p[0][words]
        return _loss(list(p[1:]), x)

    predict = jax.jit(loss)
    return lambda: predict(parameters, words).block_until_ready()


def factors_first(is_slow: bool) -> Step:
    """Factors are multiplied with each other first, or with the activation."""
    low, high = _weights(1024, 16, 1024)
    x = jnp.ones((256, 1024))

    def predict(x: Any, low: Any, high: Any) -> Any:
        for _ in range(4):
            x = jnp.tanh(x @ (low @ high) if is_slow else (x @ low) @ high)
        return x

    call = jax.jit(predict)
    return lambda: call(x, low, high).block_until_ready()
