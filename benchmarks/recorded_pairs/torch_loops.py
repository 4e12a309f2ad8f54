"""PyTorch training steps of thousands of tiny operators: loops over what one call could do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from pairs import Role, mean_step_ns
from pytorch_profile import profile_steps
from torch import nn

from recorded_pairs.torch_training import Step, convolutional, same_batch, training_step


def _layers(count: int, width: int) -> Any:
    """A deep network: two parameters for each layer."""
    torch.manual_seed(0)
    return nn.Sequential(
        *(module for _ in range(count - 1) for module in (nn.Linear(width, width), nn.ReLU())),
        nn.Linear(width, 10),
    )


def optimizer(role: Role) -> Step:
    """Adam over 242 parameters, one after the other or fused."""
    model = _layers(121, 64)
    adam = torch.optim.Adam(model.parameters(), foreach=False, fused=role == "fixed")
    inputs, labels = torch.randn(64, 64), torch.arange(64) % 10

    def step() -> None:
        adam.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        adam.step()

    return step


def samples(role: Role) -> Step:
    """The model is called for each of 64 samples, or for the batch."""
    model = nn.Sequential(
        nn.Linear(64, 128), nn.LayerNorm(128), nn.GELU(), nn.Linear(128, 128), nn.Tanh()
    )
    model.append(nn.Linear(128, 10))
    descent = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, labels = torch.randn(64, 64), torch.arange(64) % 10

    def step() -> None:
        descent.zero_grad()
        if role == "slow":
            outputs = torch.stack([model(sample) for sample in inputs])
        else:
            outputs = model(inputs)
        nn.functional.cross_entropy(outputs, labels).backward()
        descent.step()

    return step


class _Recurrent(nn.Module):  # type: ignore[misc]
    """Classifies sequences by the last state of a gated unit."""

    def __init__(self, *, is_loop: bool) -> None:
        super().__init__()
        self._is_loop = is_loop
        self.cell = nn.GRUCell(48, 96)
        self.layer = nn.GRU(48, 96, batch_first=True)
        self.head = nn.Linear(96, 10)

    def forward(self, sequences: Any) -> Any:
        if not self._is_loop:
            return self.head(self.layer(sequences)[0][:, -1])
        state = sequences.new_zeros(len(sequences), 96)
        for place in range(sequences.shape[1]):
            state = self.cell(sequences[:, place], state)
        return self.head(state)


def recurrent(role: Role) -> Step:
    """A cell is called for each of 80 places of a sequence, or a layer for all."""
    model = _Recurrent(is_loop=role == "slow")
    return training_step(model, same_batch(torch.randn(16, 80, 48), torch.arange(16) % 10))


def average(role: Role) -> Step:
    """The moving average of 242 parameters is updated one by one, or with lists of them."""
    model = _layers(121, 64)
    swa = torch.optim.swa_utils
    of_role: dict[str, Any] = (
        {"avg_fn": swa.get_ema_avg_fn(0.999)}
        if role == "slow"
        else {"multi_avg_fn": swa.get_ema_multi_avg_fn(0.999)}
    )
    averaged = swa.AveragedModel(model, **of_role)
    inputs = torch.randn(64, 64), torch.arange(64) % 10
    return training_step(model, same_batch(*inputs), lambda: averaged.update_parameters(model))


def losses(role: Role) -> Step:
    """The loss of a detector is added up box by box, or computed at once."""
    model = convolutional(32, classes=4 * 256)
    descent = torch.optim.SGD(model.parameters(), lr=0.01)
    images = torch.randn(4, 3, 64, 64)
    targets, weights = torch.randn(4 * 256, 4), torch.rand(4 * 256)

    def step() -> None:
        descent.zero_grad()
        boxes = model(images).reshape(-1, 4)
        if role == "slow":
            loss = boxes.new_zeros(())
            for box, target, weight in zip(boxes, targets, weights, strict=True):
                loss = loss + weight * nn.functional.smooth_l1_loss(box, target)
        else:
            each = nn.functional.smooth_l1_loss(boxes, targets, reduction="none").mean(dim=1)
            loss = (weights * each).sum()
        loss.backward()
        descent.step()

    return step


PROGRAMS: dict[str, Callable[[Role], Step]] = {
    "torch-single-tensor-optimizer": optimizer,
    "torch-sample-loop": samples,
    "torch-recurrent-loop": recurrent,
    "torch-parameter-average": average,
    "torch-loss-loop": losses,
}


def measure(name: str, role: Role) -> int:
    """Mean step time without the profiler, in nanoseconds."""
    return mean_step_ns(PROGRAMS[name](role))


def record(name: str, role: Role, directory: Path) -> int:
    """Writes a trace of five steps; returns their mean time in nanoseconds."""
    return profile_steps(PROGRAMS[name](role), directory)
