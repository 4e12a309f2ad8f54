"""Records a Keras ``fit`` that waits for tf.data, and the same with a parallel input pipeline.

A Python function reads each sample from a store that needs three milliseconds to answer and
decompresses it. Slow: ``map`` calls it for one sample at a time. Fixed: eight calls run
in parallel on eight threads (by default, tf.data has one per core, but these calls mostly wait),
and finished batches are prefetched.

    python demo_logs/record/tensorflow_input.py
"""

from __future__ import annotations

import os
import tempfile
import time
import zlib
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import keras
import numpy as np
import tensorflow as tf
from keras_profile import FIRST_PROFILED_STEP, PROFILED_STEPS, StepClock, StepProfiler
from pairs import (
    MEASURED_STEPS,
    WARM_UP_STEPS,
    Pair,
    Role,
    Variant,
    output_directory,
    record_pair,
)

READ_LATENCY_S = 0.003
BATCH_SIZE = 24
IMAGE_SHAPE = (48, 48, 3)

PAIR = Pair(
    slow=Variant(
        directory="tensorflow_input_slow",
        cause="tf.data map without num_parallel_calls around a Python function with 3 ms of read "
        "latency a sample: one read at a time, so preparing a batch takes longer than the step "
        "that uses it",
        acceptable_first_findings=[
            "input-stall",
            "tfdata-sequential-map",
            "python-fed-input",
        ],
        must_not_find=["full-precision-compute", "memory-near-capacity", "exposed-communication"],
    ),
    fixed=Variant(
        directory="tensorflow_input_fixed",
        cause="none: the same function with map(num_parallel_calls=8), private_threadpool_size=8 "
        "and prefetch(4); batches are ready when the step asks for them",
        acceptable_first_findings=[],
        must_not_find=[
            "input-stall",
            "tfdata-sequential-map",
            "tfdata-no-prefetch",
            "step-gap",
            "full-precision-compute",
            "memory-near-capacity",
            "exposed-communication",
        ],
    ),
    framework="tensorflow",
    packages=["tensorflow_cpu", "keras"],
    step_definition="mean time from one on_train_batch_begin to the next over 15 consecutive "
    "steps of Keras fit after 5 warm-up steps, without the profiler; each repetition with a new "
    "model and dataset",
    notes="Profiled with tf.profiler.experimental.start/stop and a Trace('Profiled batch', "
    "step_num=...) per batch, as Keras's TensorBoard callback does. TensorFlow fuses map and "
    "batch into one MapAndBatch by itself, with and without parallel calls; that dataset already "
    "prepares the next batch in the background, so the slow variant waits for the rest only, "
    "and a prefetch alone would gain little. One intra-op thread. Other work ran on the machine "
    "while measuring: judge by the median.",
    script="tensorflow_input.py",
)

COMPRESSED_IMAGES = [
    # Few gray levels, so that the images compress and decoding has something to do.
    zlib.compress(image.tobytes())
    for image in np.random.default_rng(0).integers(0, 32, size=(64, *IMAGE_SHAPE), dtype=np.uint8)
]


def read_image(index: np.int64) -> np.ndarray:
    """Reads and decodes one image."""
    time.sleep(READ_LATENCY_S)
    data = zlib.decompress(COMPRESSED_IMAGES[index % len(COMPRESSED_IMAGES)])
    return np.frombuffer(data, dtype=np.uint8).reshape(IMAGE_SHAPE).astype(np.float32) / 255.0


def load_sample(index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The input pipeline's map function."""
    image = tf.numpy_function(read_image, [index], tf.float32)
    return tf.ensure_shape(image, IMAGE_SHAPE), index % 10


def build_dataset(role: Role) -> tf.data.Dataset:
    """The only difference between slow and fixed."""
    indices = tf.data.Dataset.range(100_000)
    if role == "slow":
        return indices.map(load_sample).batch(BATCH_SIZE, drop_remainder=True)
    options = tf.data.Options()
    options.threading.private_threadpool_size = 8
    return (
        indices.map(load_sample, num_parallel_calls=8)
        .batch(BATCH_SIZE, drop_remainder=True)
        .prefetch(4)
        .with_options(options)
    )


def build_model() -> keras.Model:
    """A small convolutional network."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input(IMAGE_SHAPE),
            keras.layers.Conv2D(32, 3, strides=2, padding="same", activation="relu"),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(10),
        ]
    )
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def train(role: Role, steps: int, callbacks: list[keras.callbacks.Callback]) -> None:
    """One call of ``fit`` on a fresh model and dataset."""
    build_model().fit(
        build_dataset(role), epochs=1, steps_per_epoch=steps, verbose=0, callbacks=callbacks
    )


def measure(role: Role) -> int:
    """Mean step time without the profiler, in nanoseconds."""
    clock = StepClock()
    train(role, WARM_UP_STEPS + MEASURED_STEPS + 1, [clock])
    return clock.mean_step_ns(WARM_UP_STEPS, MEASURED_STEPS)


def record(role: Role, directory: Path) -> int:
    """Writes a profile of five steps; returns the mean step time of the first four.

    The end of the fifth is unknown: the next step begins after the profile has been written.
    """
    clock = StepClock()
    os.chdir(directory)
    train(role, FIRST_PROFILED_STEP + PROFILED_STEPS + 1, [StepProfiler("profile"), clock])
    os.chdir(tempfile.gettempdir())
    return clock.mean_step_ns(FIRST_PROFILED_STEP, PROFILED_STEPS - 1)


def main() -> None:
    """Measures, records and labels both variants."""
    output = output_directory(__doc__)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    record_pair(output, PAIR, measure, record)


if __name__ == "__main__":
    main()
