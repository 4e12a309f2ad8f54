"""Keras training on maps of tf.data that run one call at a time, on free cores and on busy ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from pairs import Role

from recorded_pairs.keras_training import BATCH_SIZE, IMAGE_SHAPE, convolutional, fit_ns

import tensorflow as tf  # isort: skip - the environment is set by then

_IMAGES = np.random.default_rng(0).integers(0, 255, size=(8, 320, 320, 3), dtype=np.uint8)


def _prepared(encoded: Any, number: Any) -> tuple[Any, Any]:
    """Decodes and scales an image."""
    image = tf.io.decode_png(encoded[number % 8], channels=3)
    image = tf.image.resize(tf.cast(image, tf.float32), IMAGE_SHAPE[:2])
    return image / 255.0, tf.cast(number % 10, tf.int32)


def _encoded() -> Any:
    return tf.constant([tf.io.encode_png(image).numpy() for image in _IMAGES])


def _one_call_at_a_time() -> Any:
    """TensorFlow would run a map without a number of calls in parallel by itself."""
    options = tf.data.Options()
    options.experimental_optimization.map_parallelization = False
    options.experimental_optimization.map_and_batch_fusion = False
    return options


def free_cores(role: Role) -> Any:
    """A map of one call at a time, or of one for each core."""
    encoded = _encoded()
    calls = None if role == "slow" else tf.data.AUTOTUNE
    numbers = tf.data.Dataset.range(10_000_000)
    images = numbers.map(lambda number: _prepared(encoded, number), num_parallel_calls=calls)
    return images.batch(BATCH_SIZE).prefetch(2).with_options(_one_call_at_a_time())


def busy_cores(role: Role) -> Any:
    """A map of one call at a time in each epoch, or only in the first."""
    encoded = _encoded()
    images = tf.data.Dataset.range(64).map(lambda number: _prepared(encoded, number))
    if role == "fixed":
        images = images.cache()
    return images.repeat().batch(BATCH_SIZE).prefetch(2).with_options(_one_call_at_a_time())


def _fit_ns(name: str, role: Role, directory: Path | None) -> int:
    if name == "keras-map-free-cores":
        # A small step on one thread: the other core has nothing to do while it waits.
        return fit_ns(convolutional(8), free_cores(role), directory=directory)
    tf.config.threading.set_intra_op_parallelism_threads(0)  # the step uses all cores
    return fit_ns(convolutional(56), busy_cores(role), directory=directory)


def measure(name: str, role: Role) -> int:
    """Mean step time without the profiler, in nanoseconds."""
    return _fit_ns(name, role, None)


def record(name: str, role: Role, directory: Path) -> int:
    """Writes a profile of five steps; returns the mean time of four in nanoseconds."""
    return _fit_ns(name, role, directory)
