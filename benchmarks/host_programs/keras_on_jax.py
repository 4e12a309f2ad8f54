"""Training in Keras on JAX."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"
os.environ["JAX_PLATFORMS"] = "cpu"

import keras
import numpy as np

Run = Callable[[int], None]


def _model(*sizes: int, **compiling: Any) -> Any:
    layers = [keras.layers.Dense(size, "relu") for size in sizes[1:]]
    model = keras.Sequential([keras.Input((sizes[0],)), *layers])
    model.compile("adam", "mse", **compiling)
    return model


class _Computed(keras.utils.PyDataset):  # type: ignore[misc]
    """Batches that are computed when they are asked for."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._steps, self._rng = steps, np.random.default_rng(0)

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, index: int) -> Any:
        x = self._rng.standard_normal((128, 512)).astype(np.float32)
        for _ in range(4):
            x = np.sin(x) + np.sort(x, axis=-1)
        return x, np.ones((128, 10), np.float32)


def slow_dataset(is_slow: bool) -> Run:
    """A PyDataset that computes each batch, or by NumPy once."""
    model = _model(512, 256, 10)

    def run(steps: int) -> None:
        if is_slow:
            model.fit(_Computed(steps), epochs=1, verbose=0)
        else:
            x = np.ones((128 * steps, 512), np.float32)
            y = np.ones((128 * steps, 10), np.float32)
            model.fit(x, y, batch_size=128, epochs=1, verbose=0, shuffle=False)

    return run


def small_steps(is_slow: bool) -> Run:
    """Fit on tiny batches on JAX, or 16 steps per execution."""
    model = _model(32, 64, 10, steps_per_execution=1 if is_slow else 16)

    def run(steps: int) -> None:
        x, y = np.ones((4 * steps, 32), np.float32), np.ones((4 * steps, 10), np.float32)
        model.fit(x, y, batch_size=4, epochs=1, verbose=0, shuffle=False)

    return run
