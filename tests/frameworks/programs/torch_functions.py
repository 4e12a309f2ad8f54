import statistics
import time

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 16, 3)
        self.out = nn.Linear(16 * 26 * 26, 10)

    def forward(self, x):
        return self.out(self.conv(x).relu().flatten(1))


def train_epoch(model, data, optimizer, ends):
    model.train()
    for x, y in data:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        ends.append(time.perf_counter())


@torch.no_grad()
def test(model, data):
    model.eval()
    return sum((model(x).argmax(1) == y).sum().item() for x, y in data)


def main():
    model = Net()
    data = [(torch.randn(32, 1, 28, 28), torch.randint(0, 10, (32,))) for _ in range(60)]
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    test(model, data)  # the accuracy before training
    ends = []
    for _ in range(4):
        train_epoch(model, data, optimizer, ends)
        test(model, data)
    print("own step:", statistics.median(b - a for a, b in zip(ends, ends[1:])) * 1e3, "ms")


main()
