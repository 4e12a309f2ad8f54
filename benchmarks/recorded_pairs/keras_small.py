"""Keras training with batches so small that calling the step takes longer than computing it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from pairs import Role

from recorded_pairs.keras_training import FEATURES

import keras  # isort: skip - the environment is set by then
import tensorflow as tf

_ROWS = 8
_STEPS_PER_CALL = 50
_WARM_UP, _MEASURED, _PROFILED = 400, 2_000, 30
"""Steps. Of calls with several steps, five are recorded."""


class _Clock(keras.callbacks.Callback):  # type: ignore[misc]
    """Measures the time between two steps, and records the steps from the first on."""

    def __init__(self, first: int, steps: int, directory: Path | None) -> None:
        super().__init__()
        self.first, self.last, self._directory = first, first + steps, directory
        self.begin_ns: dict[int, int] = {}
        self._is_recording = False

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Called by Keras before each call of the step."""
        if batch in (self.first, self.last):
            self.begin_ns[batch] = time.perf_counter_ns()
        if self._directory is None:
            return
        if batch == self.first:
            tf.profiler.experimental.start(str(self._directory))
            self._is_recording = True
        if self._is_recording:
            self._trace = tf.profiler.experimental.Trace("Profiled batch", step_num=batch)
            self._trace.__enter__()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Called by Keras after each call, with the number of its last step."""
        if self._is_recording:
            self._trace.__exit__(None, None, None)
        if self._is_recording and batch + 1 >= self.last:
            tf.profiler.experimental.stop()
            self._is_recording = False

    @property
    def mean_step_ns(self) -> int:
        """Mean time of a step."""
        first_ns, last_ns = self.begin_ns[self.first], self.begin_ns[self.last]
        return (last_ns - first_ns) // (self.last - self.first)


def _fit_ns(role: Role, directory: Path | None) -> int:
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((FEATURES,)), *layers])
    per_call = 1 if role == "slow" else _STEPS_PER_CALL
    model.compile("sgd", "mse", steps_per_execution=per_call, jit_compile=False)
    rows = np.random.default_rng(0).normal(size=(4096, FEATURES)).astype(np.float32)
    batches = tf.data.Dataset.from_tensor_slices((rows, rows[:, :1])).repeat().batch(_ROWS)
    steps = _MEASURED if directory is None else max(_PROFILED, 5 * per_call if per_call > 1 else 0)
    clock = _Clock(_WARM_UP, steps, directory)
    total = _WARM_UP + steps + 2 * per_call
    batches = batches.prefetch(tf.data.AUTOTUNE)
    model.fit(batches, epochs=1, steps_per_epoch=total, verbose=0, callbacks=[clock])
    return clock.mean_step_ns


def measure(name: str, role: Role) -> int:
    """Mean step time without the profiler, in nanoseconds."""
    return _fit_ns(role, None)


def record(name: str, role: Role, directory: Path) -> int:
    """Writes a profile; returns the mean time of its steps in nanoseconds."""
    return _fit_ns(role, directory)
