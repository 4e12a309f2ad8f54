"""Runs and records programs of several ranks over gloo, each with a known cause of lost time.

    python benchmarks/recorded_ranks/program.py DIR CAUSE SEED [SEED …]

The ranks share the cores of the machine, so what a device would compute is an operator that
sleeps: it takes its time without a core. The messages, the matching and the waiting are real. A
seed decides which rank is the odd one, and by how much.
"""

from __future__ import annotations

import datetime
import json
import os
import random
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.profiler import ProfilerActivity, profile, schedule

WORLD = 4
WARM_UP, STEPS = 3, 10
Step = Callable[[], None]


@torch.library.custom_op("device::compute", mutates_args=())
def compute(inputs: torch.Tensor, milliseconds: float) -> torch.Tensor:
    """Takes its time without a core."""
    time.sleep(milliseconds / 1000)
    return inputs.clone()


@compute.register_fake
def _(inputs: torch.Tensor, milliseconds: float) -> torch.Tensor:
    return torch.empty_like(inputs)


compute.register_autograd(
    lambda context, grad: (compute(grad, 2 * context.milliseconds), None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "milliseconds", inputs[1]),
)


class Layer(nn.Module):
    """A matrix product, and compute of a given length: twice that in the backward pass."""

    def __init__(self, width: int, milliseconds: float) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.milliseconds = milliseconds

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """One layer."""
        return compute(self.linear(inputs), self.milliseconds)


def layers(width: int, milliseconds: float, count: int = 4) -> nn.Sequential:
    """Some layers of the same width."""
    return nn.Sequential(*(Layer(width, milliseconds) for _ in range(count)))


def data_parallel(
    model: nn.Module, width: int, before: Step = lambda: None, *, samples: int = 8
) -> Step:
    """Steps of DistributedDataParallel with a cheap optimizer."""
    parallel = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        before()
        parallel(torch.randn(samples, width)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def late_on_the_host(rank: int, odd: int, lots: random.Random) -> Step:
    """One rank does something else before each step."""
    late_s = lots.uniform(0.02, 0.04)
    return data_parallel(layers(256, 4.0), 256, lambda: time.sleep(late_s) if rank == odd else None)


def larger_batch(rank: int, odd: int, lots: random.Random) -> Step:
    """One rank has more samples than the others."""
    samples = lots.randint(14, 20) if rank == odd else 8
    return data_parallel(layers(256, 0.5 * samples), 256, samples=samples)


def slow_link(rank: int, odd: int, lots: random.Random) -> Step:
    """Gradients of 16 MiB over a link that somebody throttles."""
    return data_parallel(layers(1024, lots.uniform(2.0, 4.0)), 1024)


def small_messages(rank: int, odd: int, lots: random.Random) -> Step:
    """Each gradient is reduced by itself."""
    model = layers(64, 0.5, lots.randint(30, 60))

    def step() -> None:
        model(torch.randn(8, 64)).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        model.zero_grad()

    return step


def uneven_experts(rank: int, odd: int, lots: random.Random) -> Step:
    """One expert gets twice as many tokens as the others, or more."""
    hot = lots.randint(400, 640)
    cold = (1000 - hot) // (WORLD - 1)
    out = [hot if expert == odd else cold for expert in range(WORLD)]
    return _experts(rank, out)


def even_experts(rank: int, odd: int, lots: random.Random) -> Step:
    """Every expert gets as many tokens."""
    return _experts(rank, [250] * WORLD)


def _experts(rank: int, out: list[int]) -> Step:
    back = [out[rank]] * WORLD
    weight = torch.randn(128, 128)

    def step() -> None:
        for _ in range(2):
            tokens, mine = torch.randn(sum(out), 128), torch.empty(sum(back), 128)
            dist.all_to_all_single(mine, compute(tokens, 5.0), back, out)
            result = compute(mine @ weight, 0.02 * sum(back))
            dist.all_to_all_single(tokens, result, out, back)

    return step


def pipeline_bubble(rank: int, odd: int, lots: random.Random) -> Step:
    """Stages with as few micro-batches as stages, or fewer: 43 to 60 % of the time is bubble."""
    return _pipeline(rank, lots.choice((2, 3, 4)))


def _pipeline(rank: int, micro_batches: int) -> Step:
    stage = PipelineStage(layers(64, 2.0, 2), rank, WORLD, torch.device("cpu"))
    runs = ScheduleGPipe(stage, micro_batches, loss_fn=lambda output, target: output.sum())
    batch = torch.randn(8 * micro_batches, 64)

    def step() -> None:
        if rank == 0:
            runs.step(batch)
        elif rank == WORLD - 1:
            runs.step(target=batch)
        else:
            runs.step()

    return step


def unsharded_optimizer(rank: int, odd: int, lots: random.Random) -> Step:
    """Every rank updates all parameters, which takes longer than forward and backward."""
    model = layers(128, 1.0)
    parallel = nn.parallel.DistributedDataParallel(model)
    optimizer = _SlowAdam(model.parameters(), lots.uniform(30.0, 50.0))

    def step() -> None:
        parallel(torch.randn(8, 128)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class _SlowAdam(torch.optim.AdamW):
    """AdamW whose update takes as long as that of a model with many more parameters."""

    def __init__(self, parameters: object, milliseconds: float) -> None:
        super().__init__(parameters)
        self.milliseconds = milliseconds

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        """Update, and take the time."""
        super().step()
        compute(torch.zeros(1), self.milliseconds)


def balanced(rank: int, odd: int, lots: random.Random) -> Step:
    """All ranks do the same."""
    return data_parallel(layers(256, lots.uniform(3.0, 5.0)), 256)


def sharded(rank: int, odd: int, lots: random.Random) -> Step:
    """All ranks do the same, with sharded parameters."""
    from torch.distributed.fsdp import fully_shard

    model = layers(256, lots.uniform(3.0, 5.0))
    mesh = dist.init_device_mesh("cpu", (WORLD,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        model(torch.randn(8, 256)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


CAUSES = {
    made.__name__.replace("_", "-"): made
    for made in (
        late_on_the_host,
        larger_batch,
        slow_link,
        small_messages,
        uneven_experts,
        pipeline_bubble,
        unsharded_optimizer,
        balanced,
        sharded,
        even_experts,
    )
}


def run(folder: Path, cause: str, seed: int, rank: int) -> None:
    """Run and record one rank."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/.store",
        rank=rank,
        world_size=WORLD,
        timeout=datetime.timedelta(seconds=60),
    )
    lots = random.Random(f"{cause} {seed}")
    odd = lots.randrange(WORLD)
    torch.manual_seed(0)
    step = CAUSES[cause](rank, odd, lots)
    for _ in range(WARM_UP):
        step()
    if rank == 0:
        (folder / "truth.json").write_text(json.dumps({"cause": cause, "odd_rank": odd}))

    def save(recording: profile) -> None:
        recording.export_chrome_trace(str(folder / f"rank{rank}.pt.trace.json.gz"))

    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=1, active=STEPS, repeat=1),
        on_trace_ready=save,
        record_shapes=True,
    ) as recording:
        for _ in range(1 + STEPS):
            step()
            recording.step()
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Fork the ranks of each seed in turn: PyTorch is loaded once."""
    made, cause = Path(sys.argv[1]), sys.argv[2]
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    for seed in map(int, sys.argv[3:]):
        folder = made / f"{cause}-{seed:02}"
        folder.mkdir(parents=True)
        ranks = []
        for rank in range(WORLD):
            child = os.fork()
            if child == 0:
                try:
                    run(folder, cause, seed, rank)
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
                os._exit(0)
            ranks.append(child)
        statuses = [os.waitpid(child, 0)[1] for child in ranks]
        if any(statuses):
            sys.exit(f"error: a rank of {folder.name} failed")


if __name__ == "__main__":
    main()
