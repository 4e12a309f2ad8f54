"""Callbacks that measure, mark and profile the steps of Keras's ``fit``."""

from __future__ import annotations

import time

import keras
import tensorflow as tf

FIRST_PROFILED_STEP = 8
PROFILED_STEPS = 5


class StepClock(keras.callbacks.Callback):
    """Records when each training step begins."""

    def __init__(self) -> None:
        super().__init__()
        self.begin_ns: list[int] = []

    def on_train_batch_begin(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Called by Keras before each step."""
        self.begin_ns.append(time.perf_counter_ns())

    def mean_step_ns(self, first: int, steps: int) -> int:
        """Mean time from the beginning of a step to the beginning of the next."""
        return (self.begin_ns[first + steps] - self.begin_ns[first]) // steps


class StepProfiler(keras.callbacks.Callback):
    """Profiles a few steps into a directory, each marked with its number."""

    def __init__(self, directory: str) -> None:
        """The profile contains the directory, so pass a relative one."""
        super().__init__()
        self._directory = directory

    def on_train_batch_begin(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Starts the profiler before the first step to profile, and a trace event each step."""
        if batch == FIRST_PROFILED_STEP:
            tf.profiler.experimental.start(self._directory)
        if FIRST_PROFILED_STEP <= batch < FIRST_PROFILED_STEP + PROFILED_STEPS:
            self._trace = tf.profiler.experimental.Trace("Profiled batch", step_num=batch)
            self._trace.__enter__()

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Ends the step's event, and the profile after the last one."""
        if FIRST_PROFILED_STEP <= batch < FIRST_PROFILED_STEP + PROFILED_STEPS:
            self._trace.__exit__(None, None, None)
        if batch == FIRST_PROFILED_STEP + PROFILED_STEPS - 1:
            tf.profiler.experimental.stop()
