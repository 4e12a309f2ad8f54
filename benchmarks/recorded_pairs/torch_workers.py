"""PyTorch training whose loader has worker processes: what they do is timed, too."""

from __future__ import annotations

import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pairs import Role, mean_step_ns
from pytorch_profile import profile_steps
from torch.utils.data import DataLoader

from recorded_pairs.torch_input import Samples
from recorded_pairs.torch_training import Step, convolutional, training_step
from tb_perfadvisor.instrument.torch import time_workers

_WORKERS = 2


def _loop(model: Any, sample: Callable[[int], Any], batch_size: int, prefetch: int) -> Step:
    loader: Any = DataLoader(
        Samples(sample, batch_size),
        batch_size=batch_size,
        num_workers=_WORKERS,
        persistent_workers=True,
        prefetch_factor=prefetch,
    )
    return training_step(model, iter(time_workers(loader)))


def busy(role: Role) -> Step:
    """Workers that inflate and scale images take the cores of a step with several threads."""
    torch.set_num_threads(2)
    images = np.random.default_rng(0).integers(0, 32, size=(8, 3, 256, 256), dtype=np.uint8)
    deflated = [zlib.compress(image.tobytes()) for image in images]

    def decoded(index: int) -> Any:
        data = zlib.decompress(deflated[index % 8])
        image = np.frombuffer(data, dtype=np.uint8).reshape(3, 64, 4, 64, 4)
        return torch.from_numpy(image.astype(np.float32).mean(axis=(2, 4)))

    if role == "slow":
        return _loop(convolutional(48), decoded, 16, prefetch=4)
    known = [decoded(index) for index in range(8)]
    return _loop(convolutional(48), lambda index: known[index % 8], 16, prefetch=4)


def small_files(role: Role) -> Step:
    """Workers read a file per sample, or a file per batch, from storage with latency."""
    folder = tempfile.TemporaryDirectory(prefix="pairs_")
    root = Path(folder.name)
    images = np.random.default_rng(0).integers(0, 32, size=(48, 3, 32, 32)).astype(np.float32)
    for number, image in enumerate(images):
        np.save(root / f"{number}.npy", image)
    np.save(root / "shard.npy", images)
    shard: dict[int, Any] = {}

    def read(index: int) -> Any:
        assert folder  # which lives as long as its dataset
        batch, place = divmod(index, 48)
        if role == "slow":
            time.sleep(0.0015)
            return torch.from_numpy(np.load(root / f"{place}.npy"))
        if batch not in shard:
            time.sleep(0.0015)
            shard.clear()
            shard[batch] = np.load(root / "shard.npy")
        return torch.from_numpy(shard[batch][place])

    # With more batches ready, recorded steps would not yet wait for files.
    return _loop(convolutional(24), read, 48, prefetch=1)


PROGRAMS: dict[str, Callable[[Role], Step]] = {
    "torch-busy-workers": busy,
    "torch-small-files-workers": small_files,
}


def measure(name: str, role: Role) -> int:
    """Mean step time without the profiler, in nanoseconds."""
    return mean_step_ns(PROGRAMS[name](role))


def record(name: str, role: Role, directory: Path) -> int:
    """Writes a trace of five steps; returns their mean time in nanoseconds."""
    return profile_steps(PROGRAMS[name](role), directory)
