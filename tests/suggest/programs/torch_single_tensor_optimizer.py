"""Adam updates the parameters one after the other."""

import torch
from torch import nn


def network():
    torch.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (nn.Linear(16, 16), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(16, 10))


def run():
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001, foreach=False)
    inputs, labels = torch.randn(32, 16), torch.arange(32) % 10
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
