"""Residual MLP for tabular regression, with an averaged copy of the weights."""
import argparse
import copy
import os
import time

import torch
from torch import nn


class Meter:
    """Counts steps and says when the time budget is used up."""

    def __init__(self, seconds):
        self.seconds = float(os.environ.get("PROGRAM_SECONDS", seconds))
        self.start, self.count, self.mark = None, 0, None

    def step(self, n=1):
        self.last = time.perf_counter()
        self.count += n
        if self.start is None:
            self.start = self.last
        if self.mark is None and self.last - self.start > 0.1 * self.seconds:
            self.mark = (self.count, self.last)
        return self.last - self.start < self.seconds

    def report(self):
        count, since = self.mark
        print(f"STEPS {self.count - count} SECONDS {self.last - since:.3f}")

class ResidualBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, dim)
        self.fc2 = nn.Linear(dim, dim)

    def forward(self, x):
        return x + self.fc2(torch.relu(self.fc1(self.norm(x))))


class Net(nn.Module):
    def __init__(self, features, dim=48, depth=20):
        super().__init__()
        self.inp = nn.Linear(features, dim)
        self.blocks = nn.Sequential(*[ResidualBlock(dim) for _ in range(depth)])
        self.out = nn.Linear(dim, 1)

    def forward(self, x):
        return self.out(self.blocks(self.inp(x))).squeeze(-1)


class Average:
    def __init__(self, model, decay):
        self.decay = decay
        self.model = copy.deepcopy(model).requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        averaged = self.model.state_dict()
        for name, value in model.state_dict().items():
            averaged[name].copy_(self.decay * averaged[name] + (1 - self.decay) * value)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--decay", type=float, default=0.999)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seconds", type=float, default=40)
    args = parser.parse_args()
    torch.manual_seed(0)
    x = torch.randn(16384, 24)
    y = torch.sin(x[:, 0] * 2) + x[:, 1] * x[:, 2] + 0.1 * torch.randn(16384)
    model = Net(24)
    average = Average(model, args.decay)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, foreach=True)
    meter = Meter(args.seconds)
    running, epoch = True, 0
    while running:
        for index in torch.randperm(len(x)).split(args.batch_size):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x[index]), y[index])
            loss.backward()
            optimizer.step()
            average.update(model)
            running = meter.step()
            if not running:
                break
        epoch += 1
        with torch.no_grad():
            error = nn.functional.mse_loss(average.model(x[:2048]), y[:2048])
        print(f"epoch {epoch} loss {loss.item():.4f} averaged {error.item():.4f}")
    meter.report()


if __name__ == "__main__":
    main()
