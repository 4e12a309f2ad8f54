"""Batches prepared by NumPy."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np


class BatchMaker:
    """Makes batches, on demand or while the previous one is in use."""

    def __init__(self, make: Callable[[int], Any], *, is_ahead: bool) -> None:
        self._make = make
        self._number = 0
        self._thread = ThreadPoolExecutor(1) if is_ahead else None
        self._next: Future[Any] | None = None

    def __call__(self) -> Any:
        """The next batch."""
        number, self._number = self._number, self._number + 1
        if self._thread is None:
            return self._make(number)
        due = self._next or self._thread.submit(self._make, number)
        self._next = self._thread.submit(self._make, number + 1)
        return due.result()


def augmented(number: int, batch_size: int, features: int) -> Any:
    """A batch of signals: drawn, transformed, filtered and transformed back."""
    signals = np.random.default_rng(number).standard_normal((batch_size, features))
    spectrum = np.fft.rfft(signals, axis=-1)
    spectrum[:, features // 4 :] *= 0.5
    return np.fft.irfft(spectrum, n=features, axis=-1).astype(np.float32)
