"""Parts of diffusion models."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from compiled_pairs.program import Array, Program, Role

_WIDE = jnp.float32


def upsampled_first(role: Role) -> Program:
    """A stage of a decoder doubles the resolution and halves the channels by 1 x 1 filters.

    Slow: pixels are repeated, then filtered. Fixed: filtered, then repeated.
    """
    batch, size, channels = 16, 64, 256

    def double(x: Any) -> Any:
        batch, height, width, channels = x.shape
        x = jnp.broadcast_to(x[:, :, None, :, None], (batch, height, 2, width, 2, channels))
        return x.reshape(batch, 2 * height, 2 * width, channels)

    def decode(x: Any, p: Any) -> Any:
        x = jax.nn.silu(x @ p["in"])
        x = double(x) @ p["out"] if role == "slow" else double(x @ p["out"])
        return jax.nn.silu(x + p["bias"])

    parameters = {
        "in": Array((channels, channels)),
        "out": Array((channels, channels // 2)),
        "bias": Array((channels // 2,)),
    }
    return Program(decode, (Array((batch, size, size, channels)), parameters), donated=())


def concatenated_skips(role: Role) -> Program:
    """Two stages of a U-Net mix the skip connection in by 1 x 1 filters.

    Slow: channels of both are concatenated and filtered.
    Fixed: each is multiplied with its half of the filters, and the results are added.
    """
    rows, channels = 16 * 64 * 64, 256

    def decode(x: Any, skips: Any, p: Any) -> Any:
        for skip, layer in zip(skips, p, strict=True):
            if role == "slow":
                y = jnp.concatenate([x, skip], axis=-1) @ layer["in"]
            else:
                y = x @ layer["in"][:channels] + skip @ layer["in"][channels:]
            x = x + jax.nn.silu(y) @ layer["out"]
        return x

    layer = {"in": Array((2 * channels, channels)), "out": Array((channels, channels))}
    x = Array((rows, channels))
    return Program(decode, (x, [x, x], [layer] * 2))


def modulated_block(role: Role) -> Program:
    """A block of a diffusion transformer, modulated by the time, without a fault."""
    batch, length, features, heads, width = 16, 256, 1152, 9, 128

    def norm(x: Any, shift: Any, scale: Any) -> Any:
        wide = x.astype(_WIDE)
        mean = jnp.mean(wide, axis=-1, keepdims=True)
        variance = jnp.mean(jnp.square(wide - mean), axis=-1, keepdims=True)
        wide = (wide - mean) * jax.lax.rsqrt(variance + 1e-6)
        return (wide * (1 + scale[:, None]) + shift[:, None]).astype(x.dtype)

    def denoise(x: Any, layers: Any, time: Any) -> Any:
        for p in layers:
            parts = jnp.split((jax.nn.silu(time) @ p["time"]).astype(_WIDE), 6, axis=-1)
            normed = norm(x, parts[0], parts[1])
            query, key, value = (jnp.einsum("bsm,mhd->bhsd", normed, p[n]) for n in "qkv")
            scores = jnp.einsum("bhqd,bhkd->bhqk", query, key).astype(_WIDE) * width**-0.5
            weights = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
            mixed = jnp.einsum("bhqk,bhkd->bhqd", weights, value)
            mixed = jnp.einsum("bhsd,hdm->bsm", mixed, p["o"])
            x = x + parts[2][:, None].astype(x.dtype) * mixed
            inner = jax.nn.gelu(norm(x, parts[3], parts[4]) @ p["up"])
            x = x + parts[5][:, None].astype(x.dtype) * (inner @ p["down"])
        return x

    layer = {n: Array((features, heads, width)) for n in "qkv"} | {
        "o": Array((heads, width, features)),
        "time": Array((features, 6 * features)),
        "up": Array((features, 4 * features)),
        "down": Array((4 * features, features)),
    }
    x, time = Array((batch, length, features)), Array((batch, features))
    return Program(denoise, (x, [layer] * 2, time))
