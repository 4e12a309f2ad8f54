"""Diffusion and residual networks."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from compiled_pairs.convolutions import convolve
from compiled_pairs.program import Array, Program, Role, mean_square, training

_WIDE = jnp.float32
_CHANNELS = 256


def _group_norm(x: Any, groups: int = 32) -> Any:
    batch, height, width, channels = x.shape
    parts = x.astype(_WIDE).reshape(batch, height * width, groups, channels // groups)
    mean = jnp.mean(parts, axis=(1, 3), keepdims=True)
    variance = jnp.var(parts, axis=(1, 3), keepdims=True)
    parts = (parts - mean) * jax.lax.rsqrt(variance + 1e-5)
    return parts.reshape(x.shape).astype(x.dtype)


def _residual(p: Any, x: Any, time: Any) -> Any:
    y = convolve(jax.nn.silu(_group_norm(x)), p["first"])
    y = y + (jax.nn.silu(time) @ p["time"])[:, None, None].astype(y.dtype)
    return x + convolve(jax.nn.silu(_group_norm(y)), p["second"])


def _look_up(p: Any, x: Any, text: Any) -> Any:
    """Attention of pixels to words."""
    batch, height, width, channels = x.shape
    query = x.reshape(batch, height * width, channels) @ p["q"]
    key, value = text @ p["k"], text @ p["v"]
    scores = jnp.einsum("bqd,bkd->bqk", query, key).astype(_WIDE) * channels**-0.5
    weights = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
    mixed = jnp.einsum("bqk,bkd->bqd", weights, value) @ p["o"]
    return x + mixed.reshape(x.shape)


def _unet(dtype: Any = jnp.bfloat16) -> dict[str, Array]:
    return {
        "first": Array((3, 3, _CHANNELS, _CHANNELS), dtype),
        "second": Array((3, 3, _CHANNELS, _CHANNELS), dtype),
        "time": Array((512, _CHANNELS), dtype),
        "q": Array((_CHANNELS, _CHANNELS), dtype),
        "k": Array((1024, _CHANNELS), dtype),
        "v": Array((1024, _CHANNELS), dtype),
        "o": Array((_CHANNELS, _CHANNELS), dtype),
    }


def denoising(role: Role) -> Program:
    """A step of denoising with a residual block and attention to words."""

    def denoise(x: Any, p: Any, time: Any, text: Any) -> Any:
        return x - _look_up(p, _residual(p, x, time), text)

    arguments = (Array((8, 32, 32, _CHANNELS)), _unet(), Array((8, 512)), Array((8, 77, 1024)))
    return Program(denoise, arguments)


def wide_denoising(role: Role) -> Program:
    """Denoising in 32 bits, or in 16."""
    dtype = _WIDE if role == "slow" else jnp.bfloat16

    def denoise(x: Any, p: Any, time: Any, text: Any) -> Any:
        return x - _look_up(p, _residual(p, x, time), text)

    arguments = (
        Array((8, 32, 32, _CHANNELS), dtype),
        _unet(dtype),
        Array((8, 512), dtype),
        Array((8, 77, 1024), dtype),
    )
    return Program(denoise, arguments)


def words_in_each_step(role: Role) -> Program:
    """Keys and values of the words are computed in each of 16 steps, or once."""
    words, steps = 1024, 16

    def sample(x: Any, p: Any, text: Any, times: Any) -> Any:
        keys, values = text @ p["k"], text @ p["v"]

        def step(x: Any, time: Any) -> Any:
            key, value = (text @ p["k"], text @ p["v"]) if role == "slow" else (keys, values)
            query = x @ p["q"]
            scores = jnp.einsum("bqd,bkd->bqk", query, key).astype(_WIDE) * _CHANNELS**-0.5
            weights = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
            mixed = jnp.einsum("bqk,bkd->bqd", weights, value) @ p["o"]
            return x - mixed * time.astype(x.dtype), None

        return jax.lax.scan(step, x, times)[0]

    parameters = {n: a for n, a in _unet().items() if n in "qkvo"}
    arguments = (
        Array((8, 256, _CHANNELS)),
        parameters,
        Array((8, words, 1024)),
        Array((steps,), _WIDE),
    )
    return Program(sample, arguments)


def guided_twice(role: Role) -> Program:
    """The guided and the free prediction one after the other, or as one batch."""
    features, hidden = 1152, 4608

    def predict(p: Any, x: Any) -> Any:
        for layer in p:
            x = x + jax.nn.gelu(x @ layer["up"]) @ layer["down"]
        return x

    def denoise(x: Any, p: Any, free: Any, guided: Any) -> Any:
        if role == "slow":
            without, with_words = predict(p, x + free), predict(p, x + guided)
        else:
            both = predict(p, jnp.concatenate([x + free, x + guided]))
            without, with_words = jnp.split(both, 2)
        return x - (without + 7.5 * (with_words - without))

    layer = {"up": Array((features, hidden)), "down": Array((hidden, features))}
    x = Array((1, 64, features))
    return Program(denoise, (x, [layer] * 4, x, x))


def strided_shortcut(role: Role) -> Program:
    """A shortcut by 1 x 1 filters at all places, of which one in four is used, or at those."""

    def predict(x: Any, p: Any) -> Any:
        for layer in p:
            y = jax.nn.relu(convolve(x, layer["in"], stride=1))
            if role == "slow":
                y = y[:, ::2, ::2]
                short = convolve(x, layer["short"])[:, ::2, ::2]
            else:
                y = jax.nn.relu(convolve(x[:, ::2, ::2], layer["in"]))
                short = convolve(x[:, ::2, ::2], layer["short"])
            x = jax.nn.relu(convolve(y, layer["out"]) + short)
        return x

    layer = {
        "in": Array((1, 1, 512, 256)),
        "out": Array((1, 1, 256, 512)),
        "short": Array((1, 1, 512, 512)),
    }
    return Program(predict, (Array((32, 32, 32, 512)), [layer]), donated=())


def bottleneck(role: Role) -> Program:
    """Training of a bottleneck block with batch normalization."""

    def norm(x: Any) -> Any:
        wide = x.astype(_WIDE)
        mean, variance = jnp.mean(wide, axis=(0, 1, 2)), jnp.var(wide, axis=(0, 1, 2))
        return ((wide - mean) * jax.lax.rsqrt(variance + 1e-5)).astype(x.dtype)

    def loss(p: Any, x: Any) -> Any:
        y = jax.nn.relu(norm(convolve(x, p["in"])))
        y = jax.nn.relu(norm(convolve(y, p["middle"])))
        return mean_square(jax.nn.relu(x + norm(convolve(y, p["out"]))))

    parameters = {
        "in": Array((1, 1, 512, 128)),
        "middle": Array((3, 3, 128, 128)),
        "out": Array((1, 1, 128, 512)),
    }
    return training(loss, parameters, Array((32, 28, 28, 512)))


def prepared_on_chip(role: Role) -> Program:
    """Images come in 32 bits and are normalized in the step, or come in 16 bits."""

    def predict(images: Any, p: Any) -> Any:
        if role == "slow":
            images = ((images / 255.0 - 0.45) / 0.22).astype(jnp.bfloat16)
        patches = images.reshape(64, 14, 16, 14, 16, 3).transpose(0, 1, 3, 2, 4, 5)
        x = patches.reshape(64, 196, 768) @ p["patch"]
        return x + jax.nn.gelu(x @ p["up"]) @ p["down"]

    dtype = _WIDE if role == "slow" else jnp.bfloat16
    parameters = {"patch": Array((768, 768)), "up": Array((768, 3072)), "down": Array((3072, 768))}
    return Program(predict, (Array((64, 224, 224, 3), dtype), parameters), donated=())
