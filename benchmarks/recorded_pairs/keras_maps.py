"""Keras training on maps of tf.data that run one call at a time: they wait, or share cores."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from pairs import Role

from recorded_pairs.keras_training import BATCH_SIZE, IMAGE_SHAPE, convolutional, fit_ns

import tensorflow as tf  # isort: skip - the environment is set by then

_LATENCY_S = 0.06
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
    """A map that waits for storage, for one batch at a time or for four."""
    batch = _IMAGES[np.arange(BATCH_SIZE) % 8, :48, :48].astype(np.float32)

    def fetch(number: Any) -> Any:
        time.sleep(_LATENCY_S)
        return batch + np.float32(number % 3)

    def load(number: Any) -> tuple[Any, Any]:
        images = tf.numpy_function(fetch, [number], tf.float32)
        return tf.ensure_shape(images, batch.shape), tf.range(BATCH_SIZE) % 10

    options, calls = _one_call_at_a_time(), None
    if role == "fixed":
        calls = options.threading.private_threadpool_size = 4
    batches = tf.data.Dataset.range(10_000_000).map(load, num_parallel_calls=calls)
    return batches.prefetch(2).with_options(options)


def busy_cores(role: Role) -> Any:
    """A map of one call at a time in each epoch, or only in the first."""
    encoded = _encoded()
    images = tf.data.Dataset.range(64).map(lambda number: _prepared(encoded, number))
    if role == "fixed":
        images = images.cache()
    return images.repeat().batch(BATCH_SIZE).prefetch(2).with_options(_one_call_at_a_time())


def _fit_ns(name: str, role: Role, directory: Path | None) -> int:
    if name == "keras-map-free-cores":
        # The step takes one core, and waiting none: the other one is free.
        return fit_ns(convolutional(40), free_cores(role), directory=directory)
    tf.config.threading.set_intra_op_parallelism_threads(0)  # the step uses all cores
    return fit_ns(convolutional(56), busy_cores(role), directory=directory)


def measure(name: str, role: Role) -> int:
    """Mean step time without the profiler, in nanoseconds."""
    return _fit_ns(name, role, None)


def record(name: str, role: Role, directory: Path) -> int:
    """Writes a profile of five steps; returns the mean time of four in nanoseconds."""
    return _fit_ns(name, role, directory)
