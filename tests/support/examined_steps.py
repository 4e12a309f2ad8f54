"""Looks at the tensors of some steps of a small PyTorch program."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import nn

from tb_perfadvisor.instrument.examination.calls import Watching
from tb_perfadvisor.instrument.examination.findings import examined
from tb_perfadvisor.machine.facts import Observed, ObservedKind

Step = Callable[[], object]


def look(step: Step, kind: ObservedKind, steps: int = 4) -> tuple[Observed, ...]:
    """What is found of one kind in some steps."""
    step()
    watching, ends = Watching(), [0]
    with watching:
        for _ in range(steps):
            step()
            ends.append(len(watching.calls))
    assert watching.is_on, "looking failed"
    calls = [watching.calls[a:b] for a, b in pairwise(ends)]
    return examined(calls).all_of(kind)


def training(model: nn.Module, loss: Callable[[], torch.Tensor], **options: object) -> Step:
    """A step that trains a model with SGD."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, **options)  # type: ignore[arg-type]

    def step() -> float:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        return value.item()

    return step
