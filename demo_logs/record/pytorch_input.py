"""Records a PyTorch training loop that waits for its input, and the same loop with workers.

The samples come from a store that needs two milliseconds to answer (as network storage does)
and are decompressed on the CPU. Slow: ``DataLoader(num_workers=0)`` does this in the
training process. Fixed: two persistent worker processes do it ahead of time.

    python demo_logs/record/pytorch_input.py
    python demo_logs/record/pytorch_input.py --train     # only trains, without workers
"""

from __future__ import annotations

import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from pairs import Pair, Role, Variant, mean_step_ns, output_directory, record_pair
from pytorch_profile import profile_steps
from torch import nn
from torch.utils.data import DataLoader, Dataset

READ_LATENCY_S = 0.002
BATCH_SIZE = 24
IMAGE_SHAPE = (3, 48, 48)
EPOCH_BATCHES = 64  # more than any loop here uses: no epoch ends while measuring

PAIR = Pair(
    slow=Variant(
        directory="pytorch_input_slow",
        cause="DataLoader(num_workers=0): reading (2 ms of latency a sample) and decoding of each "
        "batch happen in the training process, and no compute runs meanwhile",
        acceptable_first_findings=["input-stall", "loader-in-main-process"],
        must_not_find=["full-precision-compute", "memory-near-capacity", "exposed-communication"],
    ),
    fixed=Variant(
        directory="pytorch_input_fixed",
        cause="none: the same samples through DataLoader(num_workers=2, persistent_workers=True, "
        "prefetch_factor=4); batches are ready when the step asks for them",
        acceptable_first_findings=[],
        must_not_find=[
            "input-stall",
            "loader-in-main-process",
            "step-gap",
            "full-precision-compute",
            "memory-near-capacity",
            "exposed-communication",
        ],
    ),
    framework="pytorch",
    packages=["torch"],
    step_definition="mean wall time of 15 consecutive training steps (fetch, forward, backward, "
    "optimizer) after 5 warm-up steps, without the profiler; each repetition with a new loader "
    "and model",
    notes="One compute thread (torch.set_num_threads(1)). The worker processes are not in the "
    "trace: PyTorch's profiler sees the training process only. Other work ran on the machine "
    "while measuring: judge by the median. The milliseconds left in the fixed variant's "
    "__next__ are the main process taking a finished batch out of shared memory.",
    script="pytorch_input.py",
)

Batch = tuple[torch.Tensor, torch.Tensor]


class StoredImages(Dataset[Batch]):
    """Compressed images behind a store with latency."""

    def __init__(self) -> None:
        """Makes and compresses 64 different images."""
        generator = np.random.default_rng(0)
        # Few gray levels, so that the images compress and decoding has something to do.
        images = generator.integers(0, 32, size=(64, *IMAGE_SHAPE), dtype=np.uint8)
        self._compressed = [zlib.compress(image.tobytes()) for image in images]

    def __len__(self) -> int:
        return EPOCH_BATCHES * BATCH_SIZE

    def __getitem__(self, index: int) -> Batch:
        time.sleep(READ_LATENCY_S)
        data = zlib.decompress(self._compressed[index % len(self._compressed)])
        image = np.frombuffer(data, dtype=np.uint8).reshape(IMAGE_SHAPE)
        return torch.from_numpy(image.astype(np.float32) / 255.0), torch.tensor(index % 10)


def build_loader(role: Role) -> DataLoader[Batch]:
    """The only difference between slow and fixed."""
    if role == "slow":
        return DataLoader(StoredImages(), batch_size=BATCH_SIZE, num_workers=0)
    return DataLoader(
        StoredImages(),
        batch_size=BATCH_SIZE,
        num_workers=2,
        persistent_workers=True,
        prefetch_factor=4,
    )


class Training:
    """A small convolutional network, its data and its training step."""

    def __init__(self, role: Role) -> None:
        """Starts a new epoch with a new model."""
        torch.manual_seed(0)
        self._model = nn.Sequential(
            nn.Conv2d(3, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(64, 10),
        )
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01, momentum=0.9)
        self._batches: Iterator[Batch] = iter(build_loader(role))

    def step(self) -> None:
        """Fetches one batch and trains on it."""
        images, labels = next(self._batches)
        self._optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self._model(images), labels)
        loss.backward()
        self._optimizer.step()


def measure(role: Role) -> int:
    """Mean step time without the profiler, in nanoseconds."""
    return mean_step_ns(Training(role).step)


def record(role: Role, directory: Path) -> int:
    """Writes a trace of five steps; returns their mean time in nanoseconds."""
    return profile_steps(Training(role).step, directory)


def train(epochs: int) -> None:
    """Trains the slow variant, so that `perfadvisor try` can prove what a change brings."""
    for _ in range(epochs):
        training = Training("slow")
        for _ in range(EPOCH_BATCHES):
            training.step()


def main() -> None:
    """Measures, records and labels both variants."""
    torch.set_num_threads(1)  # leaves the second core to the loader's workers
    if sys.argv[1:] == ["--train"]:
        train(epochs=5)
    else:
        record_pair(output_directory(__doc__), PAIR, measure, record)


if __name__ == "__main__":
    main()
