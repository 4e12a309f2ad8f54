"""Records two data-parallel ranks of which one is late, and the same two in balance.

Slow: after every step, rank 1 computes statistics of its parameters and writes them to a slow
file system; rank 0 waits for it in the next gradient all-reduce. Balanced: the statistics are
logged every 200 steps. Both ranks run on one machine, over the gloo backend and loopback.

    python demo_logs/record/pytorch_ddp_straggler.py
"""

from __future__ import annotations

import os
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from pairs import Pair, Role, Variant, mean_step_ns, output_directory, record_pair
from pytorch_profile import profile_steps
from torch import nn

WORLD_SIZE = 2
STRAGGLER = 1
BATCH_SIZE = 16
WRITE_LATENCY_S = 0.060
LOGGING_INTERVAL_STEPS: dict[Role, int] = {"slow": 1, "fixed": 200}

PAIR = Pair(
    slow=Variant(
        directory="pytorch_ddp_straggler",
        cause="rank 1 logs parameter statistics after every optimizer step (a little CPU and "
        "60 ms of latency of the file system), in its training thread; rank 0 does not, and "
        "waits for rank 1 in the gradient all-reduce",
        acceptable_first_findings=["straggler", "step-gap", "exposed-communication"],
        must_not_find=["input-stall", "full-precision-compute", "memory-near-capacity"],
    ),
    fixed=Variant(
        directory="pytorch_ddp_balanced",
        cause="none: rank 1 logs every 200 steps, so not in the profiled ones; both ranks do the "
        "same work",
        acceptable_first_findings=[],
        must_not_find=[
            "straggler",
            "step-gap",
            "input-stall",
            "full-precision-compute",
            "memory-near-capacity",
        ],
    ),
    framework="pytorch",
    packages=["torch"],
    step_definition="mean wall time on rank 0 of 15 consecutive training steps (forward, "
    "backward with gradient all-reduce, optimizer, logging) after 5 warm-up steps, without the "
    "profiler; each repetition with new processes",
    notes="Two processes on one two-core machine, one compute thread each, gloo over loopback: "
    "transfers are memory copies, so waiting is nearly all that the all-reduce costs. The ranks "
    "share a clock. Each keeps its batch in memory: there is no input pipeline. Other work ran "
    "on the machine while measuring and takes time from either rank: judge by the median, and "
    "expect some exposed communication in the balanced variant, too.",
    script="pytorch_ddp_straggler.py",
)


class Training:
    """One rank's model, batch and training step."""

    def __init__(self, role: Role, rank: int) -> None:
        """Needs the process group: wrapping the model broadcasts its parameters."""
        torch.manual_seed(0)
        network = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(32, 10),
        )
        self._model = nn.parallel.DistributedDataParallel(network)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01)
        self._images = torch.randn(BATCH_SIZE, 3, 48, 48)
        self._labels = torch.randint(0, 10, (BATCH_SIZE,))
        self._logging_interval_steps = LOGGING_INTERVAL_STEPS[role] if rank == STRAGGLER else None
        self._steps_done = 0

    def step(self) -> None:
        """Trains on one batch, then logs if this rank has to."""
        self._optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self._model(self._images), self._labels)
        loss.backward()
        self._optimizer.step()
        self._steps_done += 1
        interval = self._logging_interval_steps
        if interval is not None and self._steps_done % interval == 0:
            with torch.profiler.record_function("log_parameter_statistics"):
                self._log_parameter_statistics()

    def _log_parameter_statistics(self) -> None:
        with tempfile.TemporaryFile("w") as log:
            for name, parameter in self._model.named_parameters():
                histogram = torch.histogram(parameter.detach().flatten(), bins=64).hist
                print(name, histogram.tolist(), file=log)
        time.sleep(WRITE_LATENCY_S)  # simulates a network file system


def run_rank(rank: int, role: Role, rendezvous: str, trace_directory: str | None) -> None:
    """One process: joins the group; measures, or records if there is a trace directory.

    Rank 0 writes its mean step time next to the rendezvous file.
    """
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo",
        init_method=f"file://{rendezvous}",
        rank=rank,
        world_size=WORLD_SIZE,
        timeout=timedelta(seconds=60),
    )
    step = Training(role, rank).step
    if trace_directory is None:
        step_ns = mean_step_ns(step)
    else:
        step_ns = profile_steps(step, Path(trace_directory), worker_name=f"worker{rank}")
    dist.barrier()
    if rank == 0:
        Path(f"{rendezvous}.step_ns").write_text(str(step_ns), encoding="ascii")
    dist.destroy_process_group()


def run_ranks(role: Role, trace_directory: Path | None) -> int:
    """Runs both ranks to their end; returns rank 0's mean step time in nanoseconds."""
    with tempfile.TemporaryDirectory(prefix="demo_") as scratch:
        rendezvous = str(Path(scratch) / "rendezvous")
        traces = None if trace_directory is None else str(trace_directory)
        multiprocessing.spawn(run_rank, args=(role, rendezvous, traces), nprocs=WORLD_SIZE)
        return int(Path(f"{rendezvous}.step_ns").read_text(encoding="ascii"))


def measure(role: Role) -> int:
    """Mean step time without the profiler, in nanoseconds."""
    return run_ranks(role, trace_directory=None)


def record(role: Role, directory: Path) -> int:
    """Writes one trace of five steps per rank; returns rank 0's mean step in nanoseconds."""
    return run_ranks(role, directory)


def main() -> None:
    """Measures, records and labels both variants."""
    record_pair(output_directory(__doc__), PAIR, measure, record)


if __name__ == "__main__":
    main()
