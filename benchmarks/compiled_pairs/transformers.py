"""Transformer blocks: rematerialization, host memory, decoding, and a healthy one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from compiled_pairs.products import attention, attention_parameters
from compiled_pairs.program import (
    Array,
    Program,
    Role,
    dense,
    dense_parameters,
    mean_square,
    training,
)

_FEATURES = 512


def _block(parameters: Any, x: Any) -> Any:
    return dense(parameters["dense"], attention(parameters["attention"], x))


def _parameters(layers: int) -> list[Any]:
    return [
        {
            "attention": attention_parameters(_FEATURES, 4, 128),
            "dense": dense_parameters(_FEATURES, 2048),
        }
    ] * layers


def _network(block: Callable[[Any, Any], Any], layers: int = 1) -> Program:
    def loss(parameters: Any, x: Any) -> Any:
        for layer in parameters:
            x = block(layer, x)
        return mean_square(x)

    return training(loss, _parameters(layers), Array((4, 512, _FEATURES)))


def transformer_block(role: Role) -> Program:
    """Training of blocks whose sizes fill the tiles."""
    return _network(_block)


def recomputed_blocks(role: Role) -> Program:
    """Blocks are computed again in the backward pass, or kept."""
    return _network(jax.checkpoint(_block) if role == "slow" else _block)


def recomputed_layers(role: Role) -> Program:
    """Feed-forward layers are computed again in the backward pass, or kept."""

    def loss(layers: Any, x: Any) -> Any:
        for parameters in layers:
            x = jax.checkpoint(dense)(parameters, x) if role == "slow" else dense(parameters, x)
        return mean_square(x)

    return training(loss, [dense_parameters(512, 2048)] * 2, Array((8192, 512)))


def host_offload(role: Role) -> Program:
    """Activations are kept in host memory until the backward pass, or on the device."""
    policies = jax.checkpoint_policies
    if role == "slow":
        policy = policies.save_and_offload_only_these_names(
            names_which_can_be_saved=[],
            names_which_can_be_offloaded=["activations"],
            offload_src="device",
            offload_dst="pinned_host",
        )
    else:
        policy = policies.save_only_these_names("activations")

    def layer(parameters: Any, x: Any) -> Any:
        return dense(parameters, checkpoint_name(x, "activations"))

    def loss(layers: Any, x: Any) -> Any:
        def apply(x: Any, parameters: Any) -> Any:
            return jax.checkpoint(layer, policy=policy)(parameters, x), None

        return mean_square(jax.lax.scan(apply, x, layers)[0])

    layers = {"up": Array((6, _FEATURES, 2048)), "down": Array((6, 2048, _FEATURES))}
    return training(loss, layers, Array((16_384, _FEATURES)))


def decode_loop(role: Role) -> Program:
    """Eight words are decoded, with caches that are updated in place."""
    heads, width, length = 4, 128, 1024

    def attend(parameters: Any, cache: Any, x: Any, position: Any) -> Any:
        query, key, value = (jnp.einsum("bm,mhd->bhd", x, parameters[name]) for name in "qkv")
        start = (0, 0, position, 0)
        keys = jax.lax.dynamic_update_slice(cache["key"], key[:, :, None], start)
        values = jax.lax.dynamic_update_slice(cache["value"], value[:, :, None], start)
        scores = jnp.einsum("bhd,bhsd->bhs", query, keys).astype(jnp.float32) * width**-0.5
        scores = jnp.where(jnp.arange(length) <= position, scores, -1e9)
        weights = jax.nn.softmax(scores).astype(x.dtype)
        mixed = jnp.einsum("bhs,bhsd->bhd", weights, values)
        x = x + jnp.einsum("bhd,hdm->bm", mixed, parameters["o"])
        return x, {"key": keys, "value": values}

    def decode(caches: Any, x: Any, position: Any, layers: Any) -> Any:
        def word(number: Any, state: Any) -> Any:
            caches, x = state
            updated = []
            for cache, parameters in zip(caches, layers, strict=True):
                x, cache = attend(parameters["attention"], cache, x, position + number)
                x = dense(parameters["dense"], x)
                updated.append(cache)
            return updated, x

        return jax.lax.fori_loop(0, 8, word, (caches, x))

    cache = {name: Array((32, heads, length, width)) for name in ("key", "value")}
    arguments = ([cache], Array((32, _FEATURES)), Array((), jnp.int32), _parameters(1))
    return Program(decode, arguments)
