"""Vision transformers, segmentation and residual networks."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from compiled_pairs.program import Array, Program, Role, mean_square, training

_WIDE = jnp.float32


def counted_dropout(role: Role) -> Program:
    """Training of a vision transformer's feed-forward layer with dropout.

    Slow: masks come from the default counter-based generator, which hashes each element.
    Fixed: from the chip's own generator; the words of the key are the same, the masks are not.
    """
    features, hidden = 768, 3072

    def drop(x: Any, key: Any) -> Any:
        is_kept = jax.random.bernoulli(key, 0.9, x.shape)
        return jnp.where(is_kept, x / 0.9, 0).astype(x.dtype)

    def loss(p: Any, x: Any, words: Any) -> Any:
        if role == "slow":
            key = jax.random.wrap_key_data(words[:2], impl="threefry2x32")
        else:
            key = jax.random.wrap_key_data(words, impl="rbg")
        for number, layer in enumerate(p):
            first, second = jax.random.split(jax.random.fold_in(key, number))
            inner = drop(jax.nn.gelu(x @ layer["up"]), first)
            x = x + drop(inner @ layer["down"], second)
        return mean_square(x)

    layer = {"up": Array((features, hidden)), "down": Array((hidden, features))}
    x = Array((64 * 196, features))
    return training(loss, [layer] * 2, x, Array((4,), jnp.uint32))


def probabilities_before_argmax(role: Role) -> Program:
    """The class of each pixel out of 150.

    Slow: the likeliest of the softmax's probabilities. Fixed: the largest of the logits.
    """
    channels, classes = 256, 150

    def segment(x: Any, p: Any) -> Any:
        logits = jnp.matmul(x, p["filters"], preferred_element_type=_WIDE) + p["bias"]
        if role == "slow":
            logits = jax.nn.softmax(logits, axis=-1)
        return jnp.argmax(logits, axis=-1).astype(jnp.uint8)

    parameters = {"filters": Array((channels, classes)), "bias": Array((classes,), _WIDE)}
    return Program(segment, (Array((8, 128, 128, channels)), parameters), donated=())


def unfolded_batch_norm(role: Role) -> Program:
    """Inference of two residual blocks.

    Slow: each convolution is followed by batch normalization with stored statistics.
    Fixed: the statistics are folded into the filters beforehand.
    """
    channels = 128

    def convolve(x: Any, filters: Any) -> Any:
        return jax.lax.conv_general_dilated(
            x, filters, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def normed(p: Any, x: Any) -> Any:
        y = convolve(x, p["filters"])
        if role == "fixed":
            return y + p["bias"]
        scale = p["scale"] * jax.lax.rsqrt(p["variance"] + 1e-5)
        return ((y.astype(_WIDE) - p["mean"]) * scale + p["shift"]).astype(x.dtype)

    def predict(x: Any, blocks: Any) -> Any:
        for first, second in blocks:
            x = jax.nn.relu(x + normed(second, jax.nn.relu(normed(first, x))))
        return x

    layer = {"filters": Array((3, 3, channels, channels))}
    if role == "slow":
        layer |= {n: Array((channels,), _WIDE) for n in ("scale", "variance", "mean", "shift")}
    else:
        layer["bias"] = Array((channels,))
    return Program(predict, (Array((64, 28, 28, channels)), [(layer, layer)] * 2), donated=())
