"""Convolutional networks."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from compiled_pairs.program import Array, Program, Role, mean_square, training

_LAYOUT = ("NHWC", "HWIO", "NHWC")


def convolve(x: Any, kernel: Any, stride: int = 1, groups: int = 1) -> Any:
    """A convolution of images in NHWC layout."""
    return jax.lax.conv_general_dilated(
        x,
        kernel,
        (stride, stride),
        "SAME",
        dimension_numbers=_LAYOUT,
        feature_group_count=groups,
    )


def kernel(size: int, channels: int, filters: int) -> Array:
    """The weights of a convolution."""
    return Array((size, size, channels, filters))


def _bottleneck(groups: int) -> Program:
    """A residual block whose middle convolution has groups."""

    def loss(parameters: Any, x: Any) -> Any:
        y = jax.nn.relu(convolve(x, parameters["in"]))
        y = jax.nn.relu(convolve(y, parameters["middle"], groups=groups))
        return mean_square(x + convolve(y, parameters["out"]))

    parameters = {
        "in": kernel(1, 512, 256),
        "middle": kernel(3, 256 // groups, 256),
        "out": kernel(1, 256, 512),
    }
    return training(loss, parameters, Array((16, 16, 16, 512)))


def grouped_convolution(role: Role) -> Program:
    """Eight groups of 32 channels, or none."""
    return _bottleneck(8 if role == "slow" else 1)


def grouped_resnext(role: Role) -> Program:
    """32 groups of eight channels, or none."""
    return _bottleneck(32 if role == "slow" else 1)


def stem_of_3_channels(role: Role) -> Program:
    """A first convolution over red, green and blue, or over blocks of two by two pixels."""

    def classify(images: Any, parameters: Any) -> Any:
        x = jax.nn.relu(convolve(images, parameters["stem"], 2 if role == "slow" else 1))
        return convolve(x, parameters["next"], 2)

    stem = kernel(7, 3, 64) if role == "slow" else kernel(4, 12, 64)
    images = Array((32, 128, 128, 3) if role == "slow" else (32, 64, 64, 12))
    return Program(classify, (images, {"stem": stem, "next": kernel(3, 64, 128)}), donated=())


def max_pool(role: Role) -> Program:
    """Training with maximum pooling, or with average pooling."""

    def pool(x: Any) -> Any:
        window, padding = (1, 2, 2, 1), "VALID"
        if role == "slow":
            return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, padding)
        return jax.lax.reduce_window(x, 0.0, jax.lax.add, window, window, padding) / 4

    def loss(parameters: Any, x: Any) -> Any:
        for weights in parameters:
            x = pool(jax.nn.relu(convolve(x, weights)))
        return mean_square(x)

    parameters = [kernel(3, 64, 128), kernel(3, 128, 128)]
    return training(loss, parameters, Array((32, 32, 32, 64)))


def unfused_normalization(role: Role) -> Program:
    """Batch normalization in separate operations, or left to the compiler."""

    def apart(x: Any) -> Any:
        return jax.lax.optimization_barrier(x) if role == "slow" else x

    def batch_norm(x: Any, scale: Any, shift: Any) -> Any:
        mean = apart(jnp.mean(x, axis=(0, 1, 2)))
        centered = apart(x - mean)
        variance = apart(jnp.mean(jnp.square(centered), axis=(0, 1, 2)))
        normalized = apart(centered * jax.lax.rsqrt(variance + 1e-5))
        return apart(normalized * scale) + shift

    def loss(parameters: Any, x: Any) -> Any:
        for weights, scale, shift in parameters:
            with jax.named_scope("batch_norm"):
                y = batch_norm(convolve(x, weights), scale, shift)
            x = jax.nn.relu(y)
        return mean_square(x)

    parameters = [(kernel(3, 128, 128), Array((128,)), Array((128,)))]
    return training(loss, parameters, Array((32, 16, 16, 128)))


def depthwise(role: Role) -> Program:
    """A depthwise and a pointwise convolution, or a regular one."""

    def filter_images(x: Any, parameters: Any) -> Any:
        if role == "fixed":
            return convolve(x, parameters["regular"])
        x = convolve(x, parameters["depthwise"], groups=256)
        return convolve(x, parameters["pointwise"])

    separable = {"depthwise": kernel(3, 1, 256), "pointwise": kernel(1, 256, 256)}
    parameters = separable if role == "slow" else {"regular": kernel(3, 256, 256)}
    return Program(filter_images, (Array((32, 16, 16, 256)), parameters), donated=())


def channels_of_60(role: Role) -> Program:
    """Sixty channels, or 64."""
    channels = 60 if role == "slow" else 64

    def filter_images(x: Any, parameters: Any) -> Any:
        for weights in parameters:
            x = jax.nn.relu(convolve(x, weights))
        return x

    parameters = [kernel(3, channels, channels)] * 2
    return Program(filter_images, (Array((32, 32, 32, channels)), parameters))


def image_transposes(role: Role) -> Program:
    """Each convolution has its own transposes from and to NCHW, or none has."""

    def filter_images(x: Any, parameters: Any) -> Any:
        for weights in parameters:
            if role == "slow":
                x = jnp.transpose(convolve(jnp.transpose(x, (0, 2, 3, 1)), weights), (0, 3, 1, 2))
            else:
                x = convolve(x, weights)
            x = jax.nn.relu(x)
        return x

    shape = (32, 128, 16, 16) if role == "slow" else (32, 16, 16, 128)
    return Program(filter_images, (Array(shape), [kernel(3, 128, 128)] * 2))


def convolutional_net(role: Role) -> Program:
    """Training of residual blocks whose channels fill the tiles."""

    def loss(parameters: Any, x: Any) -> Any:
        for first, second in parameters:
            x = x + convolve(jax.nn.relu(convolve(x, first)), second)
        return mean_square(x)

    return training(loss, [(kernel(3, 256, 256), kernel(3, 256, 256))], Array((32, 16, 16, 256)))
