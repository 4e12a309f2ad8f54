"""What worker processes of PyTorch's DataLoader bring on the CPU, by step and fetch.

    python -m cost_models.loader_workers

Prints the time of a training step without workers, as fetch F and rest S, and with one and two
workers. The constants of `signals/input/host_loading.py` are fitted to it. A fetch computes on its
core, or sleeps as one that waits for storage does. It runs for two minutes; keep the machine idle.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

_SECONDS = 1.0
_SAMPLES = 64
"""In a batch."""
_FETCHES = ((0, 0), (10, 0), (40, 0), (150, 0), (500, 0), (0, 300))
"""Microseconds that a sample computes, and that it waits."""


class _Dataset:
    """Images that take time to make."""

    def __init__(self, computes_us: int, waits_us: int) -> None:
        self._computes_s = computes_us * 1e-6
        self._waits_s = waits_us * 1e-6
        self._images = torch.randn(_SAMPLES, 28, 28)

    def __len__(self) -> int:
        return 400 * _SAMPLES

    def __getitem__(self, index: int) -> tuple[Any, int]:
        end = time.thread_time() + self._computes_s
        while self._computes_s and time.thread_time() < end:
            pass
        if self._waits_s:
            time.sleep(self._waits_s)
        return self._images[index % _SAMPLES], index % 10


def _dense(width: int) -> Any:
    hidden = [layer for _ in range(3) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), nn.Linear(784, width), *hidden, nn.Linear(width, 10))


def _convolutions(channels: int) -> Any:
    return nn.Sequential(
        nn.Unflatten(1, (1, 28)),
        nn.Conv2d(1, channels, 3),
        nn.ReLU(),
        nn.Conv2d(channels, channels, 3),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(channels * 144, 10),
    )


_MODELS: tuple[tuple[str, Callable[[], Any]], ...] = (
    ("dense, 64 wide", lambda: _dense(64)),
    ("dense, 512 wide", lambda: _dense(512)),
    ("32 channels", lambda: _convolutions(32)),
)


def _times_ms(model: Any, dataset: _Dataset, workers: int) -> tuple[float, float]:
    """Mean time of a step, and of the fetch in it."""
    loader: Any = torch.utils.data.DataLoader(
        dataset, batch_size=_SAMPLES, num_workers=workers, persistent_workers=workers > 0
    )
    optimizer = torch.optim.Adam(model.parameters())
    batches = iter(loader)
    times: list[tuple[float, float]] = []
    end = time.perf_counter() + _SECONDS
    while time.perf_counter() < end:
        start = time.perf_counter()
        batch = next(batches, None)
        if batch is None:
            batches = iter(loader)
            continue
        fetched = time.perf_counter()
        images, classes = batch
        loss = nn.functional.cross_entropy(model(images), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        times.append((time.perf_counter() - start, fetched - start))
    step_s, fetch_s = np.mean(times[len(times) // 5 :], axis=0)
    return 1e3 * float(step_s), 1e3 * float(fetch_s)


def main() -> None:
    """Print each case."""
    print(f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads")
    for name, make in _MODELS:
        for computes_us, waits_us in _FETCHES:
            dataset = _Dataset(computes_us, waits_us)
            alone_ms, fetch_ms = _times_ms(make(), dataset, 0)
            one_ms, _ = _times_ms(make(), dataset, 1)
            two_ms, _ = _times_ms(make(), dataset, 2)
            print(
                f"{name}, {'waits' if waits_us else 'computes'}: F {fetch_ms:.2f} ms, "
                f"S {alone_ms - fetch_ms:.2f} ms, 1 worker {one_ms:.2f} ms, "
                f"2 workers {two_ms:.2f} ms"
            )


if __name__ == "__main__":
    main()
