"""A moving average is updated parameter by parameter."""

import torch
from torch import nn


def network():
    torch.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (nn.Linear(16, 16), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(16, 10))


def run():
    model = network()
    averaged = torch.optim.swa_utils.AveragedModel(
        model,
        avg_fn=torch.optim.swa_utils.get_ema_avg_fn(0.999),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, labels = torch.randn(32, 16), torch.arange(32) % 10
    for _ in range(5):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        averaged.update_parameters(model)
    return [value.sum().item() for value in averaged.parameters()]
