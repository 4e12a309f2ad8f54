"""Two data-parallel ranks over gloo, on one machine."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from pairs import Role, mean_step_ns
from pytorch_profile import profile_steps
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from recorded_pairs.intervals import every, interval
from recorded_pairs.torch_input import Samples
from recorded_pairs.torch_training import Step, convolutional, same_batch, training_step

WORLD_SIZE = 2


def uneven_input(role: Role, rank: int) -> Step:
    """One rank has slower storage than the other."""

    def read(index: int) -> Any:
        if role == "slow" and rank == 1:
            time.sleep(0.040 / 16)
        return torch.full((3, 48, 48), float(index % 5))

    loader: Any = DataLoader(Samples(read, 16), batch_size=16)
    return training_step(DistributedDataParallel(convolutional(32)), iter(loader))


def accumulation(role: Role, rank: int) -> Step:
    """Four micro-batches per step, with gradients reduced in each or in the last."""
    torch.manual_seed(rank)
    wide = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512), nn.ReLU())
    model = DistributedDataParallel(nn.Sequential(wide, nn.Linear(512, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, labels = torch.randn(64, 512), torch.arange(64) % 10

    def step() -> None:
        optimizer.zero_grad()
        for number in range(4):
            alone = role == "fixed" and number < 3
            with model.no_sync() if alone else nullcontext():
                nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    return step


def buckets(role: Role, rank: int) -> Step:
    """Gradients of many small layers, reduced one by one or together."""
    torch.manual_seed(rank)
    layers = [layer for _ in range(100) for layer in (nn.Linear(48, 48), nn.ReLU())]
    model = DistributedDataParallel(
        nn.Sequential(*layers, nn.Linear(48, 10)),
        bucket_cap_mb=0.001 if role == "slow" else 25,
    )
    return training_step(model, same_batch(torch.randn(64, 48), torch.arange(64) % 10))


def uneven_batches(role: Role, rank: int) -> Step:
    """The second rank gets five of six samples, or half of them."""
    torch.manual_seed(rank)
    count = (16, 80)[rank] if role == "slow" else 48
    batch = same_batch(torch.randn(count, 3, 48, 48), torch.arange(count) % 10)
    return training_step(DistributedDataParallel(convolutional(32)), batch)


def metrics(role: Role, rank: int) -> Step:
    """Metrics averaged over the ranks one by one, or together."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(convolutional(32))
    values = torch.rand(60)

    def average() -> None:
        for part in values.split(1) if role == "slow" else [values]:
            dist.all_reduce(part)
            part /= WORLD_SIZE

    batch = same_batch(torch.randn(16, 3, 48, 48), torch.arange(16) % 10)
    return training_step(model, batch, average)


def checkpoint(role: Role, rank: int) -> Step:
    """The first rank saves a checkpoint after each step, or rarely."""
    torch.manual_seed(0)
    wide = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512), nn.ReLU())
    model = DistributedDataParallel(nn.Sequential(wide, nn.Linear(512, 10)))
    folder = tempfile.TemporaryDirectory(prefix="pairs_")

    def save() -> None:
        torch.save(model.state_dict(), Path(folder.name) / "checkpoint.pt")

    batch = same_batch(torch.randn(64, 512), torch.arange(64) % 10)
    return training_step(model, batch, every(interval(role), save) if rank == 0 else None)


PROGRAMS: dict[str, Callable[[Role, int], Step]] = {
    "ddp-input": uneven_input,
    "ddp-accumulate": accumulation,
    "ddp-buckets": buckets,
    "ddp-uneven-batches": uneven_batches,
    "ddp-metrics": metrics,
    "ddp-checkpoint": checkpoint,
}


def _run_rank(rank: int, name: str, role: Role, rendezvous: str, traces: str | None) -> None:
    """One process: joins the group; measures, or records if there is a directory for traces."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo",
        init_method=f"file://{rendezvous}",
        rank=rank,
        world_size=WORLD_SIZE,
        timeout=timedelta(seconds=60),
    )
    step = PROGRAMS[name](role, rank)
    if traces is None:
        step_ns = mean_step_ns(step)
    else:
        step_ns = profile_steps(step, Path(traces), worker_name=f"worker{rank}")
    dist.barrier()
    if rank == 0:
        Path(f"{rendezvous}.step_ns").write_text(str(step_ns), encoding="ascii")
    dist.destroy_process_group()


def _run_ranks(name: str, role: Role, directory: Path | None) -> int:
    """Runs both ranks to their end; returns rank 0's mean step time in nanoseconds."""
    with tempfile.TemporaryDirectory(prefix="pairs_") as scratch:
        rendezvous = str(Path(scratch) / "rendezvous")
        traces = None if directory is None else str(directory)
        arguments = (name, role, rendezvous, traces)
        multiprocessing.spawn(_run_rank, args=arguments, nprocs=WORLD_SIZE)
        return int(Path(f"{rendezvous}.step_ns").read_text(encoding="ascii"))


def measure(name: str, role: Role) -> int:
    """Mean step time without the profiler, in nanoseconds."""
    return _run_ranks(name, role, None)


def record(name: str, role: Role, directory: Path) -> int:
    """Writes one trace of five steps per rank; returns rank 0's mean step in nanoseconds."""
    return _run_ranks(name, role, directory)
