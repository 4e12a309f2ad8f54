"""PyTorch training loops that do too much on the host, between steps or within them."""

from __future__ import annotations

import gc
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pairs import Role, mean_step_ns
from pytorch_profile import profile_steps

from recorded_pairs.intervals import every, interval
from recorded_pairs.torch_training import (
    Step,
    convolutional,
    same_batch,
    training_step,
    transformer,
)


def _images(count: int = 16) -> Any:
    return torch.randn(count, 3, 64, 64), torch.arange(count) % 10


def histograms(role: Role) -> Step:
    """Writes statistics of all parameters to a file, and flushes it."""
    model = convolutional(64)
    log = tempfile.TemporaryFile("w")  # noqa: SIM115 - open as long as the loop runs

    def write() -> None:
        for name, parameter in model.named_parameters():
            counts, edges = np.histogram(parameter.detach().numpy(), bins=128)
            record = {"name": name, "counts": counts.tolist(), "edges": edges.tolist()}
            log.write(json.dumps(record))
        log.flush()
        os.fsync(log.fileno())

    return training_step(model, same_batch(*_images()), every(interval(role), write))


def checkpoint(role: Role) -> Step:
    """A checkpoint on disk."""
    model = torch.nn.Sequential(
        torch.nn.Flatten(),
        torch.nn.Linear(3 * 64 * 64, 256),
        torch.nn.ReLU(),
        torch.nn.Linear(256, 10),
    )
    folder = tempfile.TemporaryDirectory(prefix="pairs_")

    def save() -> None:
        torch.save(model.state_dict(), Path(folder.name) / "checkpoint.pt")

    return training_step(model, same_batch(*_images(64)), every(interval(role), save))


def validation(role: Role) -> Step:
    """A pass over validation data."""
    model = convolutional(48)
    images, labels = _images(16)

    def validate() -> None:
        with torch.profiler.record_function("validate"), torch.no_grad():
            model.eval()
            model(images).argmax(dim=1).eq(labels).float().mean()
            model.train()

    return training_step(model, same_batch(images, labels), every(interval(role), validate))


def metrics(role: Role) -> Step:
    """A confusion matrix, counted in Python or by a tensor operator."""
    predicted = torch.randint(0, 10, (150_000,))
    actual = torch.randint(0, 10, (150_000,))

    def in_python() -> None:
        counts: dict[tuple[int, int], int] = {}
        for pair in zip(predicted.tolist(), actual.tolist(), strict=True):
            counts[pair] = counts.get(pair, 0) + 1

    def at_once() -> None:
        torch.bincount(predicted * 10 + actual, minlength=100)

    count = in_python if role == "slow" else at_once
    return training_step(convolutional(), same_batch(*_images()), count)


def progress(role: Role) -> Step:
    """A progress bar on a slow terminal."""
    sink = Path(os.devnull).open("w")  # noqa: SIM115 - open as long as the loop runs

    def show() -> None:
        print("loss 0.123 | accuracy 45.6 %", end="\r", file=sink, flush=True)
        time.sleep(0.0025)

    images = same_batch(*_images(16))
    return training_step(convolutional(64), images, every(interval(role), show))


def python_mask(role: Role) -> Step:
    """A model that makes its mask in Python in each call."""
    length = 64
    model = transformer(length, width=96)
    encoder = model[1]

    def visible() -> Any:
        rows = [[column <= row for column in range(length)] for row in range(length)]
        weights = [[0.0 if cell else -1e9 for cell in row] for row in rows]
        return torch.tensor(weights)

    fixed = visible()
    run = encoder.forward

    def forward(source: Any) -> Any:
        mask = visible() if role == "slow" else fixed
        for _ in range(24 if role == "slow" else 0):  # one for each head and pattern
            mask = visible()
        return run(source, mask=mask)

    encoder.forward = forward
    tokens = torch.randint(0, 1000, (12, length))
    return training_step(model, same_batch(tokens, torch.arange(12) % 10))


def garbage(role: Role) -> Step:
    """A full garbage collection, which visits every object in the process."""

    def collect() -> None:
        gc.collect()

    batches = same_batch(*_images(24))
    return training_step(convolutional(64), batches, every(interval(role), collect))


PROGRAMS: dict[str, Callable[[Role], Step]] = {
    "torch-histograms": histograms,
    "torch-checkpoint": checkpoint,
    "torch-validation": validation,
    "torch-metrics": metrics,
    "torch-progress": progress,
    "torch-python-mask": python_mask,
    "torch-garbage": garbage,
}


def measure(name: str, role: Role) -> int:
    """Mean step time without the profiler, in nanoseconds."""
    return mean_step_ns(PROGRAMS[name](role))


def record(name: str, role: Role, directory: Path) -> int:
    """Writes a trace of five steps; returns their mean time in nanoseconds."""
    return profile_steps(PROGRAMS[name](role), directory)
