"""Small PyTorch models and their training step, for the recorded pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

torch.set_num_threads(1)  # leaves the second core to loader workers

Step = Callable[[], None]
Batch = Any
"""Inputs and labels."""


def convolutional(width: int = 48, classes: int = 10) -> Any:
    """A convolutional network for small images."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, classes),
    )


def transformer(length: int, width: int = 128, layers: int = 2, vocabulary: int = 1000) -> Any:
    """A transformer that classifies sequences of tokens."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(width, nhead=4, batch_first=True, dropout=0.0)
    return nn.Sequential(
        nn.Embedding(vocabulary, width),
        nn.TransformerEncoder(layer, layers, enable_nested_tensor=False),
        nn.Flatten(),
        nn.Linear(length * width, 10),
    )


def training_step(model: Any, batches: Iterator[Batch], after: Step | None = None) -> Step:
    """Fetches one batch, trains on it, and runs what follows a step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        inputs, labels = next(batches)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        if after is not None:
            after()

    return step


def same_batch(inputs: Any, labels: Any) -> Iterator[Batch]:
    """The same batch in memory, repeated."""
    while True:
        yield inputs, labels
