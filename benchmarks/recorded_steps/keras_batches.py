"""Keras's `fit`, recorded by its TensorBoard callback for one batch or for several.

    python -m recorded_steps.keras_batches MODEL BATCHES DIRECTORY [MEASURED]

Writes one recording and its true step times below DIRECTORY.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from time import perf_counter_ns
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import keras
import tensorflow as tf

from recorded_steps.timing import Times

_WARM_UP_STEPS = 5
_MEASURED_STEPS = 20
"""Before the first recorded batch, and after the last; three beside them are left out."""
_MARGIN = 3


class Begins(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Records when each batch begins. As the last callback: after the profiler was started."""

    def __init__(self) -> None:
        super().__init__()
        self.at_ns: list[int] = []

    def on_train_batch_begin(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Called by Keras before each batch."""
        self.at_ns.append(perf_counter_ns())

    def mean_ns(self, first: int, last: int) -> float:
        """Mean time from the beginning of a batch to the beginning of the next."""
        return (self.at_ns[last] - self.at_ns[first]) / (last - first)


class Ends(keras.callbacks.Callback):  # type: ignore[misc]
    """Records when each batch ends. As the first callback: before the profile is written."""

    def __init__(self) -> None:
        super().__init__()
        self.at_ns: list[int] = []

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Called by Keras after each batch."""
        self.at_ns.append(perf_counter_ns())


def convolutional() -> tuple[Any, Any]:
    """A convolutional network and batches of images that stay in memory."""
    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((48, 48, 3)),
            layers.Conv2D(64, 3, strides=2, padding="same", activation="relu"),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"], jit_compile=False)
    images = tf.random.stateless_normal((32, 48, 48, 3), (1, 2))
    batches = tf.data.Dataset.from_tensors((images, tf.range(32) % 10)).repeat().prefetch(2)
    return model, batches


def dense() -> tuple[Any, Any]:
    """A dense network and batches that are mapped and shuffled as in most tutorials."""
    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((28, 28)),
            layers.Flatten(),
            layers.Dense(1024, activation="relu"),
            layers.Dropout(0.2),
            layers.Dense(1024, activation="relu"),
            layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"], jit_compile=False)
    images = tf.random.stateless_uniform((4096, 28, 28), (1, 2), 0, 255, tf.int32)
    labels = tf.range(4096) % 10

    def scaled(image: Any, label: Any) -> tuple[Any, Any]:
        return tf.cast(image, tf.float32) / 255.0, label

    rows = tf.data.Dataset.from_tensor_slices((tf.cast(images, tf.uint8), labels)).repeat()
    batches = rows.shuffle(1024).batch(128).map(scaled).prefetch(tf.data.AUTOTUNE)
    return model, batches


MODELS = {"convolutional": convolutional, "dense": dense}


def record(
    name: str, batches: int, directory: Path, measured_steps: int = _MEASURED_STEPS
) -> Times:
    """Train; the TensorBoard callback records some batches.

    Args:
        name: Of `MODELS`.
        batches: How many to record.
        directory: Where the profile goes.
        measured_steps: How many steps to measure before the recording, and as many after it.
    """
    model, data = MODELS[name]()
    before = _WARM_UP_STEPS + measured_steps
    first = before + _MARGIN
    last = first + batches - 1
    begins, ends = Begins(), Ends()
    # The callback counts batches from 1.
    profile_batch = first + 1 if batches == 1 else (first + 1, last + 1)
    tensorboard = keras.callbacks.TensorBoard(str(directory), profile_batch=profile_batch)
    after = last + _MARGIN
    total = after + measured_steps + 1
    callbacks = [ends, tensorboard, begins]
    model.fit(data, epochs=1, steps_per_epoch=total, verbose=0, callbacks=callbacks)
    before_ns = begins.mean_ns(before - measured_steps, before)
    after_ns = begins.mean_ns(after, after + measured_steps)
    # The profile is written between the end of the last recorded batch and the next.
    recorded_ns = (ends.at_ns[last] - begins.at_ns[first]) / batches
    return Times((before_ns + after_ns) / 2, recorded_ns)


if __name__ == "__main__":
    target = Path(sys.argv[3])
    target.mkdir(parents=True, exist_ok=True)
    record(sys.argv[1], int(sys.argv[2]), target, *map(int, sys.argv[4:])).write(target)
