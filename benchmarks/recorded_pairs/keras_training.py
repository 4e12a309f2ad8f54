"""Small Keras models, and how their training is measured and recorded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import keras
import tensorflow as tf
from keras_profile import FIRST_PROFILED_STEP, PROFILED_STEPS, StepClock, StepProfiler
from pairs import MEASURED_STEPS, WARM_UP_STEPS

IMAGE_SHAPE = (48, 48, 3)
BATCH_SIZE = 16
FEATURES, ROWS = 32, 256
"""Of a table, and of a batch of it."""

tf.config.threading.set_intra_op_parallelism_threads(1)


def convolutional(width: int = 80, **options: Any) -> Any:
    """A convolutional network for small images, compiled."""
    keras.utils.set_random_seed(0)
    layers = keras.layers
    return _compiled(
        [
            keras.Input(IMAGE_SHAPE),
            layers.Conv2D(width, 3, strides=2, padding="same", activation="relu"),
            layers.Conv2D(width, 3, padding="same", activation="relu"),
            layers.Conv2D(width, 3, padding="same", activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(10),
        ],
        **options,
    )


def dense(width: int = 640) -> Any:
    """A network for rows of a table, compiled."""
    keras.utils.set_random_seed(0)
    hidden = [keras.layers.Dense(width, activation="relu") for _ in range(3)]
    return _compiled([keras.Input((FEATURES,)), *hidden, keras.layers.Dense(10)])


def _compiled(layers: Sequence[Any], **options: Any) -> Any:
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, jit_compile=False, **options)
    return model


def same_batch() -> Any:
    """The same batch in memory, repeated."""
    images = tf.random.stateless_normal((BATCH_SIZE, *IMAGE_SHAPE), (1, 2))
    return tf.data.Dataset.from_tensors((images, tf.range(BATCH_SIZE) % 10)).repeat().prefetch(2)


def fit_ns(
    model: Any, batches: Any, callbacks: Sequence[Any] = (), directory: Path | None = None
) -> int:
    """Trains; returns the mean step time in nanoseconds, of the recorded steps if there are any.

    Args:
        model: a compiled model.
        batches: a dataset.
        callbacks: callbacks of the program itself.
        directory: where to write a profile; by default nothing is recorded.
    """
    clock = StepClock()
    first, steps = WARM_UP_STEPS, MEASURED_STEPS
    all_callbacks: list[Any] = [*callbacks, clock]
    if directory is not None:
        # The end of the last step is unknown: the next step begins after the profile is written.
        first, steps = FIRST_PROFILED_STEP, PROFILED_STEPS - 1
        all_callbacks = [StepProfiler(str(directory)), *all_callbacks]
    total = first + steps + 2
    model.fit(batches, epochs=1, steps_per_epoch=total, verbose=0, callbacks=all_callbacks)
    return clock.mean_step_ns(first, steps)
