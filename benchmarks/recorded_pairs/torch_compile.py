"""PyTorch training loops with a compiled model and changing shapes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from pairs import Role, mean_step_ns
from pytorch_profile import profile_steps
from torch import nn

from recorded_pairs.torch_training import Step, training_step

_LONGEST = 160


def _batches(role: Role) -> Iterator[Any]:
    """Sequences of different lengths, or padded to the longest."""
    number = 0
    while True:
        length = _LONGEST - 1 - 7 * number % 61  # no length twice in 61 batches
        padded = torch.zeros(16, _LONGEST, 128)
        padded[:, :length] = torch.randn(16, length, 128)
        number += 1
        yield (padded[:, :length] if role == "slow" else padded), torch.arange(16) % 10


def lengths(role: Role) -> Step:
    """A model that is compiled for static shapes."""
    torch._dynamo.reset()
    torch._dynamo.config.recompile_limit = 1000
    torch.manual_seed(0)
    layers = [layer for _ in range(2) for layer in (nn.Linear(128, 128), nn.GELU())]
    network = nn.Sequential(*layers, nn.Linear(128, 10))

    def classify(sequences: Any) -> Any:
        return network(sequences).mean(dim=1)

    compiled = torch.compile(classify, backend="aot_eager", dynamic=False)
    compiled.parameters = network.parameters  # interface that the training step expects of a model
    return training_step(compiled, _batches(role))


def measure(name: str, role: Role) -> int:
    """Mean step time without the profiler, in nanoseconds."""
    return mean_step_ns(lengths(role))


def record(name: str, role: Role, directory: Path) -> int:
    """Writes a trace of five steps; returns their mean time in nanoseconds."""
    return profile_steps(lengths(role), directory)
