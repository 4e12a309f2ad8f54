"""Keras training with callbacks that do too much, or without a graph."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from pairs import Role

from recorded_pairs.intervals import interval
from recorded_pairs.keras_training import IMAGE_SHAPE, convolutional, fit_ns, same_batch

import keras  # isort: skip - the environment is set by then


def _callback(name: str, model: Any, steps: int) -> Any:
    log = tempfile.TemporaryFile("w")  # noqa: SIM115 - open as long as fit runs

    def write(batch: int, logs: Any = None) -> None:
        if (batch + 1) % steps:
            return
        if name == "keras-weights":
            for weights in model.get_weights():
                for _ in range(3):
                    counts, _ = np.histogram(weights, bins=128)
                    log.write(str(counts.tolist()))
        else:
            log.write(str(logs))
            time.sleep(0.015)
        log.flush()
        os.fsync(log.fileno())

    return keras.callbacks.LambdaCallback(on_train_batch_end=write)


def _evaluation(model: Any, steps: int) -> Any:
    images = np.zeros((8, *IMAGE_SHAPE), np.float32)

    def evaluate(batch: int, logs: Any = None) -> None:
        if (batch + 1) % steps == 0:
            model(images, training=False)

    return keras.callbacks.LambdaCallback(on_train_batch_end=evaluate)


def _fit_ns(name: str, role: Role, directory: Path | None) -> int:
    if name == "keras-eager":
        model = convolutional(width=48, run_eagerly=role == "slow")
        return fit_ns(model, same_batch(), directory=directory)
    model = convolutional()
    steps = interval(role)
    if name == "keras-evaluation":
        return fit_ns(model, same_batch(), [_evaluation(model, steps)], directory)
    callback = _callback(name, model, steps)
    return fit_ns(model, same_batch(), [callback], directory)


def measure(name: str, role: Role) -> int:
    """Mean step time without the profiler, in nanoseconds."""
    return _fit_ns(name, role, None)


def record(name: str, role: Role, directory: Path) -> int:
    """Writes a profile of five steps; returns the mean time of four in nanoseconds."""
    return _fit_ns(name, role, directory)
