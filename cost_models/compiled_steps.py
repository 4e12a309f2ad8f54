"""What torch.compile saves of eager steps on the CPU that compute next to nothing.

    python -m cost_models.compiled_steps [PROGRAM ...]

It runs small models with and without `torch.compile`, in turns, and prints the processor time of
a step of both beside what a recording of the eager step shows: its operators, and how many
gradients it accumulates. The costs in `signals/host/eager_steps.py` are fitted to that. Compiling
takes some minutes in all.
"""

# PyTorch is not installed where types are checked.
# mypy: disable-error-code=misc

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tb_perfadvisor.signals.host.eager_steps import ACCUMULATES, KEPT, expected_saving_ns

_SECONDS = 0.1
_TURNS = 9
_WARM_UP_STEPS = 10
_PROFILED_STEPS = 3


class _Cells(nn.Module):
    """A loop over the places of a sequence."""

    def __init__(self, places: int, size: int) -> None:
        super().__init__()
        self.cell, self.places = nn.RNNCell(size, size), places

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.zeros_like(x)
        for _ in range(self.places):
            hidden = self.cell(x, hidden)
        return hidden


class _Samples(nn.Module):
    """A loop over samples."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([torch.tanh(self.linear(row)).sum() * 2 + 1 for row in x])


class _Elementwise(nn.Module):
    """A chain of elementwise operators."""

    def __init__(self, count: int, size: int) -> None:
        super().__init__()
        self.weight, self.count = nn.Parameter(torch.ones(size)), count

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.count):
            x = torch.sigmoid(x * self.weight + 0.1) - 0.5 * x
        return x


class _Mixture(nn.Module):
    """A loss written out by hand: a mixture of normal distributions."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(size, 20), nn.Tanh())
        self.weights, self.means, self.scales = (nn.Linear(20, 5) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.net(x)
        weights = torch.softmax(self.weights(hidden), -1)
        scales = torch.exp(self.scales(hidden))
        distance = (x[:, :1] - self.means(hidden)) / scales
        density = torch.exp(-0.5 * distance**2) / scales / 2.5066
        return -torch.log((weights * density).sum(1) + 1e-6)


class _Residual(nn.Module):
    """Blocks of normalization, two products and an activation."""

    def __init__(self, blocks: int, size: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(size), nn.Linear(size, size), nn.GELU(), nn.Linear(size, size)
            )
            for _ in range(blocks)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


class _Blocks(nn.Module):
    """Products with gates and norms that are written out."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))
        self.scale = nn.Parameter(torch.ones(64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            hidden = layer(x)
            hidden = hidden * torch.sigmoid(hidden)
            size = hidden.pow(2).mean(-1, keepdim=True)
            x = x + hidden * torch.rsqrt(size + 1e-6) * self.scale
        return x


class _Exits(nn.Module):
    """Ends early if it is sure, which it asks after each block."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU()) for _ in range(6)
        )
        self.heads = nn.ModuleList(nn.Linear(64, 10) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block, head in zip(self.blocks, self.heads, strict=True):
            x = x + block(x)
            chances = head(x).softmax(-1)
            if chances.max(-1).values.mean().item() > 0.9:
                break
        return chances


class _Experts(nn.Module):
    """Chooses the rows of each expert by a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(64, 4)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64)) for _ in range(4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, chosen = self.router(x).softmax(-1).max(-1)
        made = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            mask = chosen == number
            if mask.any():
                made[mask] = expert(x[mask]) * weight[mask, None]
        return x + made


class _Denoiser(nn.Module):
    """A small network that is called for each place in time."""

    def __init__(self) -> None:
        super().__init__()
        self.times = nn.Embedding(50, 64)
        self.first, self.second, self.last = nn.Linear(2, 64), nn.Linear(64, 64), nn.Linear(64, 2)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        hidden = nn.functional.silu(self.first(x) + self.times(time))
        made: torch.Tensor = self.last(nn.functional.silu(self.second(hidden) + hidden))
        return made


def _perceptron(layers: int, size: int) -> nn.Module:
    pairs = [(nn.Linear(size, size), nn.ReLU()) for _ in range(layers)]
    return nn.Sequential(*(module for pair in pairs for module in pair))


def _transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2)


_PROGRAMS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(8, 1), (16, 8)),
    "perceptron-3": (lambda: _perceptron(3, 16), (32, 16)),
    "perceptron-16": (lambda: _perceptron(16, 32), (32, 32)),
    "perceptron-48": (lambda: _perceptron(48, 32), (16, 32)),
    "mixture": (lambda: _Mixture(16), (32, 16)),
    "residual-4": (lambda: _Residual(4, 32), (32, 32)),
    "transformer-2": (_transformer, (4, 16, 32)),
    "samples-32": (lambda: _Samples(16), (32, 16)),
    "cells-32": (lambda: _Cells(32, 16), (8, 16)),
    "elementwise-8": (lambda: _Elementwise(8, 64), (32, 64)),
    "elementwise-32": (lambda: _Elementwise(32, 64), (32, 64)),
}


_FORWARD: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int, int]] = {
    "scorer": (lambda: _perceptron(3, 48), (8, 48), 1, 0),
    "blocks": (_Blocks, (16, 64), 1, 0),
    "exits": (_Exits, (16, 64), 1, 6),
    "experts": (lambda: nn.Sequential(_Experts(), _Experts()), (128, 64), 1, 24),
    "sampler": (_Denoiser, (64, 2), 50, 0),
}
"""Models that do not train, with how often a step calls them, and breaks in it. Writing to the rows
that a mask chooses is none."""


def main() -> None:
    """Print a line for each program."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print("program          operators  gradients    eager  compiled    saved  foretold (us)")
    for name in sys.argv[1:] or (*_PROGRAMS, *_FORWARD):
        trains, calls, breaks = name in _PROGRAMS, 1, 0
        if trains:
            build, shape = _PROGRAMS[name]
        else:
            build, shape, calls, breaks = _FORWARD[name]
        x = torch.randn(*shape)
        eager = build()
        compiled: Any = torch.compile(build())
        steps = [
            _training(model, x) if trains else _calling(model, x, calls)
            for model in (eager, compiled)
        ]
        operators, gradients = _recorded(steps[0])
        eager_us, compiled_us = _step_us(*steps)
        foretold_us = (
            expected_saving_ns(operators, gradients, calls, trains=trains, breaks=breaks) / 1e3
        )
        print(
            f"{name:<16} {operators:>9} {gradients:>10} {eager_us:>8.0f} {compiled_us:>9.0f}"
            f" {eager_us - compiled_us:>8.0f} {foretold_us:>9.0f}",
            flush=True,
        )


def _training(model: nn.Module, x: torch.Tensor) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        (model(x) ** 2).mean().backward()
        optimizer.step()

    return step


def _calling(model: nn.Module, x: torch.Tensor, calls: int) -> Callable[[], None]:
    times = [torch.full(x.shape[:1], number) for number in range(calls)]

    def step() -> None:
        with torch.inference_mode():
            for time in times:
                model(x, time) if calls > 1 else model(x)

    return step


def _recorded(step: Callable[[], None]) -> tuple[int, int]:
    """The outermost operators of a step that compiling fuses, and its accumulated gradients."""
    step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(_PROFILED_STEPS):
            step()
    outermost: list[Any] = [event for event in profiler.events() if event.cpu_parent is None]
    names = [event.name for event in outermost if not event.name.startswith("Optimizer.")]
    gradients = sum(bool(ACCUMULATES.search(name)) for name in names)
    fused = sum(not ACCUMULATES.search(name) and not KEPT.search(name) for name in names)
    return fused // _PROFILED_STEPS, gradients // _PROFILED_STEPS


def _step_us(*steps: Callable[[], None]) -> list[float]:
    """The processor time of each of some steps, measured in turns."""
    for step in steps:
        for _ in range(_WARM_UP_STEPS):
            step()
    times: list[list[float]] = [[] for _ in steps]
    for _ in range(_TURNS):
        for step, taken in zip(steps, times, strict=True):
            end_s, start_ns, count = time.perf_counter() + _SECONDS, time.process_time_ns(), 0
            while time.perf_counter() < end_s:
                step()
                count += 1
            taken.append((time.process_time_ns() - start_ns) / count / 1e3)
    return [statistics.median(taken) for taken in times]


if __name__ == "__main__":
    main()
