"""Custom TensorFlow training loops."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np
import tensorflow as tf
from pairs import Role, mean_step_ns

from recorded_pairs.batch_ahead import BatchMaker, augmented
from recorded_pairs.intervals import every, interval

_SKIPPED_STEPS = 6
_PROFILED_STEPS = 5

tf.config.threading.set_intra_op_parallelism_threads(1)

Loop = tuple[Callable[[], None], Callable[[], None]]
"""What a loop does between two steps, and its step."""


def _nothing() -> None:
    """Do nothing between steps."""


def _network(*sizes: int) -> list[Any]:
    tf.random.set_seed(0)
    shapes = pairwise(sizes)
    return [tf.Variable(0.05 * tf.random.normal(shape)) for shape in shapes]


def _train(weights: list[Any], inputs: Any, scale: Any) -> None:
    with tf.GradientTape() as tape:
        hidden = inputs
        for weight in weights:
            hidden = tf.nn.relu(hidden @ weight)
        loss = tf.reduce_mean(tf.square(hidden)) * tf.cast(scale, tf.float32)
    for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
        weight.assign_sub(0.01 * gradient)


def retracing(role: Role) -> Loop:
    """Traces a graph for each Python number."""
    weights = _network(256, 512, 512, 256)
    inputs = tf.random.normal((1024, 256))
    train = tf.function(lambda scale: _train(weights, inputs, scale))
    number = 0

    def step() -> None:
        nonlocal number
        number += 1
        train(number if role == "slow" else tf.constant(number))

    return _nothing, step


def lengths(role: Role) -> Loop:
    """Traces a graph for each sequence length."""
    longest = 128
    weights = _network(128, 256, 256, 128)
    train = tf.function(lambda inputs: _train(weights, inputs, 1.0))
    number = 0

    def step() -> None:
        nonlocal number
        number += 1
        length = longest - 7 * number % 61
        inputs = tf.random.normal((16, length, 128))
        if role == "fixed":
            inputs = tf.pad(inputs, ((0, 0), (0, longest - length), (0, 0)))
        train(inputs)

    return _nothing, step


def numpy(role: Role) -> Loop:
    """Batches made by NumPy."""
    weights = _network(2048, 1024, 256, 10)
    train = tf.function(lambda inputs: _train(weights, inputs, 1.0))
    batches = BatchMaker(lambda number: augmented(number, 256, 2048), is_ahead=role == "fixed")
    batch: Any = None

    def between() -> None:
        nonlocal batch
        batch = tf.constant(batches())

    return between, lambda: train(batch)


def new_function(role: Role) -> Loop:
    """Creates a tf.function for each call, or once."""
    weights = _network(256, 512, 512, 512, 256)
    inputs = tf.random.normal((768, 256))

    def made() -> Any:
        return tf.function(lambda: _train(weights, inputs, 1.0))

    once = made()
    return _nothing, lambda: (made() if role == "slow" else once)()


def eager(role: Role) -> Loop:
    """Operators run one by one."""
    weights = _network(*[96] * 100)
    inputs = tf.random.normal((512, 96))

    def train() -> None:
        _train(weights, inputs, 1.0)

    return _nothing, train if role == "slow" else tf.function(train)


def py_function(role: Role) -> Loop:
    """A regularization computed within the step by NumPy, or by TensorFlow."""
    weights = _network(256, 1024, 1024, 256)
    inputs = tf.random.normal((256, 256))

    def by_numpy(values: Any) -> Any:
        largest = np.quantile(np.abs(values), 0.99)
        return np.float32(np.clip(values, -largest, largest).std())

    def train() -> None:
        for weight in weights:
            if role == "slow":
                scale = tf.ensure_shape(tf.numpy_function(by_numpy, [weight], tf.float32), ())
            else:
                scale = tf.math.reduce_std(weight)
            weight.assign(weight / (1.0 + 1e-6 * scale))
        _train(weights, inputs, 1.0)

    return _nothing, tf.function(train)


def checkpoint(role: Role) -> Loop:
    """A checkpoint after each step, or rarely."""
    weights = _network(512, 1024, 512, 256)
    inputs = tf.random.normal((512, 512))
    folder = tempfile.TemporaryDirectory(prefix="pairs_")
    saved = tf.train.Checkpoint(weights=weights)
    train = tf.function(lambda: _train(weights, inputs, 1.0))

    def save() -> None:
        saved.write(str(Path(folder.name) / "checkpoint"))

    return every(interval(role), save), train


PROGRAMS: dict[str, Callable[[Role], Loop]] = {
    "tf-retracing": retracing,
    "tf-lengths": lengths,
    "tf-numpy": numpy,
    "tf-new-function": new_function,
    "tf-eager": eager,
    "tf-py-function": py_function,
    "tf-checkpoint": checkpoint,
}


def measure(name: str, role: Role) -> int:
    """Mean step time without the profiler, in nanoseconds."""
    between, step = PROGRAMS[name](role)

    def both() -> None:
        between()
        step()

    return mean_step_ns(both)


def record(name: str, role: Role, directory: Path) -> int:
    """Writes a profile of five steps; returns their mean time in nanoseconds."""
    between, step = PROGRAMS[name](role)
    for _ in range(_SKIPPED_STEPS):
        between()
        step()
    return _profile(between, step, directory)


def _profile(between: Callable[[], None], step: Callable[[], None], directory: Path) -> int:
    with tf.profiler.experimental.Profile(str(directory)):
        start_ns = time.perf_counter_ns()
        for number in range(_SKIPPED_STEPS, _SKIPPED_STEPS + _PROFILED_STEPS):
            between()
            with tf.profiler.experimental.Trace("train", step_num=number, _r=1):
                step()
        return (time.perf_counter_ns() - start_ns) // _PROFILED_STEPS
