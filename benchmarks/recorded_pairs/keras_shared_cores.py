"""Keras training whose input is ready in time, but takes the cores that the step needs."""

from __future__ import annotations

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

tf.config.threading.set_intra_op_parallelism_threads(0)  # the default: the step uses all cores

_IMAGES = np.random.default_rng(0).integers(0, 255, size=(8, 320, 320, 3), dtype=np.uint8)


def element_map(role: Role) -> Any:
    """Rows of a table prepared one by one on all cores, or batch by batch; ahead of the step."""
    table = tf.random.stateless_normal((4096, FEATURES), (1, 2))
    rows = tf.data.Dataset.from_tensor_slices((table, tf.range(4096) % 10)).repeat()

    def prepared(row: Any, label: Any) -> tuple[Any, Any]:
        for power in range(1, 6):
            row = tf.where(row > power, tf.math.log1p(tf.abs(row)), row / (1.0 + 0.1 * power))
        return tf.clip_by_value(row, -3.0, 3.0), label

    if role == "slow":
        rows = rows.map(prepared, num_parallel_calls=tf.data.AUTOTUNE).batch(ROWS)
    else:
        rows = rows.batch(ROWS).map(prepared, num_parallel_calls=tf.data.AUTOTUNE)
    return rows.prefetch(tf.data.AUTOTUNE)


def decode(role: Role) -> Any:
    """Images decoded in each epoch on all cores ahead of the step, or once."""
    encoded = tf.constant([tf.io.encode_png(image).numpy() for image in _IMAGES])

    def decoded(number: Any) -> tuple[Any, Any]:
        image = tf.io.decode_png(encoded[number % 8], channels=3)
        image = tf.image.resize(tf.cast(image, tf.float32), IMAGE_SHAPE[:2])
        return image / 255.0, tf.cast(number % 10, tf.int32)

    images = tf.data.Dataset.range(64).map(decoded, num_parallel_calls=tf.data.AUTOTUNE)
    if role == "fixed":
        images = images.cache()
    return images.repeat().batch(BATCH_SIZE).prefetch(tf.data.AUTOTUNE)


def generator(role: Role) -> Any:
    """A generator filters images in NumPy, ahead of the step; or they are filtered, in memory."""
    kernel = np.hanning(9)

    def filtered(number: int) -> Any:
        image = _IMAGES[number % 8, :48, :48].astype(np.float64)
        for axis in (0, 1):
            image = np.apply_along_axis(np.convolve, axis, image, kernel, mode="same")
        return (image / 255.0).astype(np.float32)

    known = [filtered(number) for number in range(8)]
    if role == "fixed":
        labels = [number % 10 for number in range(8)]
        images = tf.data.Dataset.from_tensor_slices((np.stack(known), labels)).repeat()
        return images.batch(BATCH_SIZE).prefetch(tf.data.AUTOTUNE)

    def samples() -> Iterator[tuple[Any, int]]:
        number = 0
        while True:
            image = filtered(number) if number % 2 == 0 else known[number % 8]
            yield image, number % 10
            number += 1

    signature = (tf.TensorSpec(IMAGE_SHAPE, tf.float32), tf.TensorSpec((), tf.int32))
    images = tf.data.Dataset.from_generator(samples, output_signature=signature)
    return images.batch(BATCH_SIZE).prefetch(tf.data.AUTOTUNE)


PROGRAMS: dict[str, Callable[[Role], Any]] = {
    "keras-element-map-ahead": element_map,
    "keras-decode-ahead": decode,
    "keras-generator-ahead": generator,
}


def _model(name: str) -> Any:
    return dense() if name == "keras-element-map-ahead" else convolutional(32)


def measure(name: str, role: Role) -> int:
    """Mean step time without the profiler, in nanoseconds."""
    return fit_ns(_model(name), PROGRAMS[name](role))


def record(name: str, role: Role, directory: Path) -> int:
    """Writes a profile of five steps; returns the mean time of four in nanoseconds."""
    return fit_ns(_model(name), PROGRAMS[name](role), directory=directory)
