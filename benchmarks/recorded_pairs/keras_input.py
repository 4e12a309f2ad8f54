"""Keras training that waits for tf.data."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from pairs import Role

from recorded_pairs.keras_training import (
    BATCH_SIZE,
    FEATURES,
    IMAGE_SHAPE,
    ROWS,
    convolutional,
    dense,
    fit_ns,
)

import tensorflow as tf  # isort: skip - the environment is set by then

_SIGNATURE = (
    tf.TensorSpec(IMAGE_SHAPE, tf.float32),
    tf.TensorSpec((), tf.int32),
)
_IMAGES = np.random.default_rng(0).integers(0, 32, size=(8, 240, 240, 3), dtype=np.uint8)
_DEFLATED = [zlib.compress(image.tobytes()) for image in _IMAGES]


def _samples(first: int = 0) -> Iterator[tuple[Any, int]]:
    number = first
    while True:
        time.sleep(0.006)
        yield _IMAGES[number % 8, :48, :48].astype(np.float32), number % 10
        number += 1


def generator(role: Role) -> Any:
    """Samples from Python, from one generator or from four in parallel."""
    if role == "slow":
        samples = tf.data.Dataset.from_generator(_samples, output_signature=_SIGNATURE)
        return samples.batch(BATCH_SIZE)
    options = tf.data.Options()
    options.threading.private_threadpool_size = 4
    return (
        tf.data.Dataset.range(4)
        .interleave(
            lambda first: tf.data.Dataset.from_generator(
                _samples, args=(first,), output_signature=_SIGNATURE
            ),
            cycle_length=4,
            num_parallel_calls=4,
        )
        .batch(BATCH_SIZE)
        .prefetch(4)
        .with_options(options)
    )


def _transformed(number: Any) -> tuple[Any, Any]:
    """Blurs and scales an image with TensorFlow operators."""
    image = tf.cast(tf.gather(_IMAGES, number % 8), tf.float32)[tf.newaxis]
    for _ in range(6):
        image = tf.nn.avg_pool2d(image, 5, 1, "SAME")
    image = tf.image.resize(image, IMAGE_SHAPE[:2])[0]
    return image / 32.0, tf.cast(number % 10, tf.int32)


def transform(role: Role) -> Any:
    """A map over 64 images in each epoch, or in the first one."""
    images = tf.data.Dataset.range(64).map(_transformed)
    if role == "fixed":
        images = images.cache()
    return images.repeat().batch(BATCH_SIZE).prefetch(2)


def no_prefetch(role: Role) -> Any:
    """Batches read on demand, or prefetched."""
    batch = _IMAGES[np.arange(BATCH_SIZE) % 8, :48, :48].astype(np.float32)

    def read(number: Any) -> Any:
        time.sleep(0.025)
        return batch + np.float32(number % 3)

    def load(number: Any) -> tuple[Any, Any]:
        images = tf.numpy_function(read, [number], tf.float32)
        return tf.ensure_shape(images, (BATCH_SIZE, *IMAGE_SHAPE)), tf.range(BATCH_SIZE) % 10

    # Otherwise TensorFlow adds a prefetch.
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    batches = tf.data.Dataset.range(100_000).map(load).with_options(options)
    return batches if role == "slow" else batches.prefetch(2)


def py_function(role: Role) -> Any:
    """Images decoded by a Python function, or by TensorFlow."""
    deflated = tf.constant(_DEFLATED)

    def in_python(number: Any) -> Any:
        data = zlib.decompress(_DEFLATED[number % 8])
        image = np.frombuffer(data, dtype=np.uint8).reshape(240, 240, 3)
        blocks = image.reshape(48, 5, 48, 5, 3).astype(np.float32)
        return blocks.mean(axis=(1, 3)).astype(np.float32)

    def by_python(number: Any) -> tuple[Any, Any]:
        image = tf.numpy_function(in_python, [number], tf.float32)
        return tf.ensure_shape(image, IMAGE_SHAPE), tf.cast(number % 10, tf.int32)

    def by_tensorflow(number: Any) -> tuple[Any, Any]:
        data = tf.io.decode_compressed(deflated[number % 8], "ZLIB")
        image = tf.reshape(tf.io.decode_raw(data, tf.uint8), (1, 240, 240, 3))
        image = tf.nn.avg_pool2d(tf.cast(image, tf.float32), 5, 5, "VALID")
        return image[0], tf.cast(number % 10, tf.int32)

    numbers = tf.data.Dataset.range(100_000)
    if role == "slow":
        return numbers.map(by_python).batch(BATCH_SIZE)
    return numbers.map(by_tensorflow, num_parallel_calls=2).batch(BATCH_SIZE).prefetch(2)


def element_map(role: Role) -> Any:
    """Rows of a table taken and prepared one by one, or batch by batch."""
    table = tf.random.stateless_normal((4096, FEATURES), (1, 2))

    def prepared(rows: Any, labels: Any) -> tuple[Any, Any]:
        for power in range(1, 9):
            rows = tf.where(rows > power, tf.math.log1p(tf.abs(rows)), rows / (1.0 + 0.1 * power))
        return tf.clip_by_value(rows, -3.0, 3.0), labels

    if role == "slow":
        rows = tf.data.Dataset.range(10_000_000).map(
            lambda number: (table[number % 4096], tf.cast(number % 10, tf.int32))
        )
        return rows.map(prepared).batch(ROWS)
    rows = tf.data.Dataset.from_tensor_slices((table, tf.range(4096) % 10))
    return rows.batch(ROWS).cache().repeat().map(prepared).prefetch(2)


def png(role: Role) -> Any:
    """Images decoded in each epoch, or once."""
    large = _IMAGES.repeat(3, axis=1).repeat(3, axis=2)
    encoded = tf.constant([tf.io.encode_png(image).numpy() for image in large])

    def decoded(number: Any) -> tuple[Any, Any]:
        image = tf.io.decode_png(encoded[number % 8], channels=3)
        image = tf.image.resize(tf.cast(image, tf.float32), IMAGE_SHAPE[:2])
        return image / 32.0, tf.cast(number % 10, tf.int32)

    images = tf.data.Dataset.range(64).map(decoded, num_parallel_calls=tf.data.AUTOTUNE)
    if role == "fixed":
        images = images.cache()
    return images.repeat().batch(BATCH_SIZE).prefetch(2)


PROGRAMS: dict[str, Callable[[Role], Any]] = {
    "keras-generator": generator,
    "keras-transform": transform,
    "keras-no-prefetch": no_prefetch,
    "keras-py-function": py_function,
    "keras-element-map": element_map,
    "keras-png": png,
}

_LONG_INPUT = {"keras-transform", "keras-py-function"}


def _model(name: str) -> Any:
    """A smaller model if the input itself is slow, or a model for tables."""
    if name == "keras-element-map":
        return dense()
    return convolutional(32 if name in _LONG_INPUT else 80)


def measure(name: str, role: Role) -> int:
    """Mean step time without the profiler, in nanoseconds."""
    return fit_ns(_model(name), PROGRAMS[name](role))


def record(name: str, role: Role, directory: Path) -> int:
    """Writes a profile of five steps; returns the mean time of four in nanoseconds."""
    return fit_ns(_model(name), PROGRAMS[name](role), directory=directory)
