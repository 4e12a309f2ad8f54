"""Training in TensorFlow and Keras: what one call of `fit` or a loop does."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import keras
import numpy as np
import tensorflow as tf

Run = Callable[[int], None]
"""Runs a number of steps."""


def _model(*sizes: int, dtype: str = "float32", **compiling: Any) -> Any:
    layers = [keras.layers.Dense(size, "relu", dtype=dtype) for size in sizes[1:]]
    model = keras.Sequential([keras.Input((sizes[0],), dtype=dtype), *layers])
    model.compile("adam", "mse", **compiling)
    return model


def small_batches(is_slow: bool) -> Run:
    """Fit on batches of four, or 32 steps per execution."""
    model = _model(32, 64, 10, steps_per_execution=1 if is_slow else 32)

    def run(steps: int) -> None:
        x, y = np.ones((4 * steps, 32), np.float32), np.ones((4 * steps, 10), np.float32)
        model.fit(x, y, batch_size=4, epochs=1, verbose=0, shuffle=False)

    return run


def one_map(is_slow: bool) -> Run:
    """A heavy map without parallel calls, or parallel and ahead."""
    model = _model(1024, 256, 10)

    def prepare(seed: Any) -> Any:
        x = tf.random.stateless_normal((256, 1024), tf.stack([seed, 1]))
        for _ in range(6):
            x = tf.sin(x) + tf.sort(x, axis=-1)
        return x, tf.ones((256, 10))

    def run(steps: int) -> None:
        data = tf.data.Dataset.range(steps)
        parallel = None if is_slow else tf.data.AUTOTUNE
        data = data.map(prepare, num_parallel_calls=parallel)
        if not is_slow:
            data = data.prefetch(tf.data.AUTOTUNE)
        model.fit(data, epochs=1, verbose=0)

    return run


def metrics_outside(is_slow: bool) -> Run:
    """Metrics are updated and read outside of the tf.function, or inside, read at the end."""
    model = _model(128, 256, 10)
    x, y = tf.ones((128, 128)), tf.ones((128, 10))
    metrics = [
        keras.metrics.MeanSquaredError(),
        keras.metrics.MeanAbsoluteError(),
        keras.metrics.CosineSimilarity(),
        keras.metrics.RootMeanSquaredError(),
    ]

    @tf.function  # type: ignore[untyped-decorator]
    def train() -> Any:
        with tf.GradientTape() as tape:
            outputs = model(x, training=True)
            loss = tf.reduce_mean(tf.square(outputs - y))
        variables = model.trainable_variables
        model.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        if not is_slow:
            for metric in metrics:
                metric.update_state(y, outputs)
        return outputs

    def run(steps: int) -> None:
        for number in range(steps):
            with tf.profiler.experimental.Trace("train", step_num=number, _r=1):
                outputs = train()
                if is_slow:
                    for metric in metrics:
                        metric.update_state(y, outputs)
                        float(metric.result())

    return run


def doubles_in_graph(is_slow: bool) -> Run:
    """Float64, or float32."""
    dtype = "float64" if is_slow else "float32"
    model = _model(512, 1024, 1024, 10, dtype=dtype)
    x, y = np.ones((256, 512), dtype), np.ones((256, 10), dtype)

    def run(steps: int) -> None:
        data = tf.data.Dataset.from_tensors((x, y)).cache().repeat(steps).prefetch(2)
        model.fit(data, epochs=1, verbose=0)

    return run


def large_batches(is_slow: bool) -> Run:
    """Fit on cached and prefetched large batches."""
    model = _model(1024, 1024, 1024, 10)
    x, y = np.ones((512, 1024), np.float32), np.ones((512, 10), np.float32)

    def run(steps: int) -> None:
        data = tf.data.Dataset.from_tensors((x, y)).cache().repeat(steps).prefetch(2)
        model.fit(data, epochs=1, verbose=0)

    return run
