"""PyTorch training loops that wait for their DataLoader."""

from __future__ import annotations

import bisect
import itertools
import random
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pairs import Role, mean_step_ns
from pytorch_profile import profile_steps
from torch.utils.data import DataLoader

from recorded_pairs.torch_training import Step, convolutional, training_step, transformer

BATCHES = 64  # more than any loop here uses: no epoch ends while measuring
_CLASSES = 10


class Samples:
    """A dataset whose samples are made by a function, as many as an epoch needs."""

    def __init__(self, make: Callable[[int], Any], batch_size: int) -> None:
        self._make = make
        self._length = BATCHES * batch_size

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self._make(index), index % _CLASSES


def _loop(
    model: Any, sample: Callable[[int], Any], batch_size: int, workers: int, **options: Any
) -> Step:
    if workers:
        options |= {"persistent_workers": True, "prefetch_factor": 2}
    loader: Any = DataLoader(
        Samples(sample, batch_size),
        batch_size=batch_size,
        num_workers=workers,
        **options,
    )
    return training_step(model, iter(loader))


@cache
def _image(seed: int, size: int) -> Any:
    return np.random.default_rng(seed).integers(0, 32, size=(3, size, size), dtype=np.uint8)


@cache
def _deflated(seed: int, size: int) -> bytes:
    return zlib.compress(_image(seed, size).tobytes())


def _from_storage(latency_s: float) -> Callable[[int], Any]:
    def read(index: int) -> Any:
        time.sleep(latency_s)
        return torch.from_numpy(_image(index % 8, 64).astype(np.float32))

    return read


def _decoded(size: int) -> Callable[[int], Any]:
    """Inflates an image and scales it to 64 pixels by averaging."""

    def decode(index: int) -> Any:
        data = zlib.decompress(_deflated(index % 8, size))
        image = np.frombuffer(data, dtype=np.uint8).reshape(3, size, size).astype(np.float32)
        block = size // 64
        return torch.from_numpy(image.reshape(3, 64, block, 64, block).mean(axis=(2, 4)))

    return decode


def latency(role: Role) -> Step:
    """Storage with latency."""
    return _loop(convolutional(), _from_storage(0.003), 16, workers=0 if role == "slow" else 4)


def decode(role: Role) -> Step:
    """Decoding in each epoch, or once."""
    decoded = _decoded(192)
    if role == "fixed":
        known = [decoded(index) for index in range(8)]
        return _loop(convolutional(64), lambda index: known[index % 8], 16, workers=0)
    return _loop(convolutional(64), decoded, 16, workers=0)


def heavy_decode(role: Role) -> Step:
    """Decoding that takes longer than the step, in the training process or in two workers."""
    return _loop(convolutional(32), _decoded(384), 16, workers=0 if role == "slow" else 2)


def tokenize(role: Role) -> Step:
    """Texts tokenized in Python."""
    words = [f"word{number}" for number in range(997)]
    vocabulary = {word: number for number, word in enumerate(words)}
    text = " ".join(f"{words[number * 7919 % 997].title()}," for number in range(2000))

    def tokens(index: int) -> Any:
        found = [word.strip(",.").lower() for word in text[index % 7 :].split()]
        return torch.tensor([vocabulary.get(word, 999) for word in found[:48]])

    if role == "fixed":
        known = [tokens(index) for index in range(7)]
        return _loop(transformer(48), lambda index: known[index % 7], 12, workers=0)
    return _loop(transformer(48), tokens, 12, workers=0)


def collate(role: Role) -> Step:
    """Batches collated from numbers, or from arrays."""

    def number_by_number(samples: list[tuple[Any, int]]) -> tuple[Any, Any]:
        images = [image.ravel().tolist() for image, _ in samples]
        return torch.tensor(images).reshape(-1, 3, 64, 64), torch.tensor([y for _, y in samples])

    def at_once(samples: list[tuple[Any, int]]) -> tuple[Any, Any]:
        images = np.stack([image for image, _ in samples])
        return torch.from_numpy(images), torch.tensor([label for _, label in samples])

    def sample(index: int) -> Any:
        return _image(index % 8, 64).astype(np.float32)

    collate_fn = number_by_number if role == "slow" else at_once
    return _loop(convolutional(), sample, 16, workers=0, collate_fn=collate_fn)


def slow_batches(role: Role) -> Step:
    """A worker that keeps up except for every fifth batch."""

    def read(index: int) -> Any:
        if role == "slow" and index % 80 == 79:
            time.sleep(0.250)
        return torch.from_numpy(_image(index % 8, 64).astype(np.float32))

    return _loop(convolutional(), read, 16, workers=1)


def few_workers(role: Role) -> Step:
    """One worker where four are needed."""
    return _loop(convolutional(), _from_storage(0.008), 16, workers=1 if role == "slow" else 4)


def small_files(role: Role) -> Step:
    """A file per sample, or a file per batch, from storage with latency."""
    folder = tempfile.TemporaryDirectory(prefix="pairs_")
    root = Path(folder.name)
    for number in range(32):
        np.save(root / f"{number}.npy", _image(number, 32).astype(np.float32))
    np.save(root / "shard.npy", np.stack([_image(n, 32) for n in range(32)]).astype(np.float32))
    shard: dict[int, Any] = {}

    def read(index: int) -> Any:
        assert folder  # which lives as long as its dataset
        batch, place = divmod(index, 32)
        if role == "slow":
            time.sleep(0.001)
            return torch.from_numpy(np.load(root / f"{place}.npy"))
        if batch not in shard:
            time.sleep(0.001)
            shard.clear()
            shard[batch] = np.load(root / "shard.npy")
        return torch.from_numpy(shard[batch][place])

    return _loop(convolutional(64), read, 32, workers=0)


def _augmented(images: Any) -> Any:
    """Flips, shifts, and changes brightness and contrast of one image or of several."""
    images = torch.roll(images.flip(-1), shifts=(2, 3), dims=(-2, -1))
    images = (images - images.mean(dim=(-2, -1), keepdim=True)) * 1.2 + 0.1
    noise = torch.randn_like(images)
    return (images + 0.05 * noise).clamp(-1.0, 1.0).contiguous()


def augment(role: Role) -> Step:
    """Tensor operators on single images, or on a batch."""

    def sample(index: int) -> Any:
        image = torch.from_numpy(_image(index % 8, 32).astype(np.float32)) / 32.0
        return _augmented(image) if role == "slow" else image

    def at_once(samples: list[tuple[Any, int]]) -> tuple[Any, Any]:
        images = torch.stack([image for image, _ in samples])
        return _augmented(images), torch.tensor([label for _, label in samples])

    options = {} if role == "slow" else {"collate_fn": at_once}
    return _loop(convolutional(32), sample, 96, workers=0, **options)


def sampler(role: Role) -> Step:
    """Weighted sampling that sums the weights for each batch, or once; with a worker."""
    weights = [1 + number % 7 for number in range(1_000_000)]

    def batches() -> Iterator[list[int]]:
        drawn = random.Random(0)
        sums = list(itertools.accumulate(weights))
        for _ in range(BATCHES):
            if role == "slow":
                sums = list(itertools.accumulate(weights))
            yield [bisect.bisect(sums, drawn.random() * sums[-1]) for _ in range(16)]

    images = [torch.from_numpy(_image(number, 64).astype(np.float32)) for number in range(8)]
    loader: Any = DataLoader(
        Samples(lambda index: images[index % 8], len(weights)),
        batch_sampler=list(batches()) if role == "fixed" else _Drawn(batches),
        num_workers=1,
        persistent_workers=True,
    )
    return training_step(convolutional(), iter(loader))


class _Drawn:
    """Batches of indices, drawn on demand."""

    def __init__(self, draw: Callable[[], Iterator[list[int]]]) -> None:
        self._draw = draw

    def __iter__(self) -> Iterator[list[int]]:
        return self._draw()

    def __len__(self) -> int:
        return BATCHES


def epochs(role: Role) -> Step:
    """Short epochs with new workers each, or persistent workers."""
    images = [torch.from_numpy(_image(number, 64).astype(np.float32)) for number in range(8)]
    loader: Any = DataLoader(
        [(images[number % 8], number % _CLASSES) for number in range(3 * 16)],
        batch_size=16,
        num_workers=2,
        persistent_workers=role == "fixed",
    )

    def again() -> Iterator[Any]:
        while True:
            yield from loader

    return training_step(convolutional(32), again())


def nested_lists(role: Role) -> Step:
    """Samples stored as lists of numbers, or as tensors."""
    known: list[Any] = [_image(number, 64).astype(np.float32) for number in range(8)]
    if role == "slow":
        lists = [image.tolist() for image in known]
        return _loop(convolutional(64), lambda index: torch.tensor(lists[index % 8]), 16, workers=0)
    tensors = [torch.from_numpy(image) for image in known]
    return _loop(convolutional(64), lambda index: tensors[index % 8], 16, workers=0)


PROGRAMS: dict[str, Callable[[Role], Step]] = {
    "torch-latency": latency,
    "torch-decode": decode,
    "torch-heavy-decode": heavy_decode,
    "torch-tokenize": tokenize,
    "torch-collate": collate,
    "torch-slow-batches": slow_batches,
    "torch-few-workers": few_workers,
    "torch-small-files": small_files,
    "torch-augment": augment,
    "torch-sampler": sampler,
    "torch-nested-lists": nested_lists,
    "torch-epochs": epochs,
}


def measure(name: str, role: Role) -> int:
    """Mean step time without the profiler, in nanoseconds."""
    return mean_step_ns(PROGRAMS[name](role))


def record(name: str, role: Role, directory: Path) -> int:
    """Writes a trace of five steps; returns their mean time in nanoseconds."""
    return profile_steps(PROGRAMS[name](role), directory)
