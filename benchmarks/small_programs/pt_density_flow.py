"""Coupling flow for two-dimensional densities embedded in eight dimensions."""
import argparse
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

class Coupling(nn.Module):
    def __init__(self, dim, hidden, flip):
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(nn.Linear(dim // 2, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, dim))

    def forward(self, x):
        a, b = x.chunk(2, dim=1)
        if self.flip:
            a, b = b, a
        scale, shift = self.net(a).chunk(2, dim=1)
        scale = torch.tanh(scale)
        b = b * torch.exp(scale) + shift
        return torch.cat([b, a] if self.flip else [a, b], dim=1), scale.sum(1)


class Flow(nn.Module):
    def __init__(self, dim=8, hidden=64, depth=10):
        super().__init__()
        self.layers = nn.ModuleList(Coupling(dim, hidden, i % 2 == 1) for i in range(depth))

    def log_prob(self, x):
        total = 0.0
        for layer in self.layers:
            x, logdet = layer(x)
            total = total + logdet
        return total - 0.5 * (x ** 2).sum(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--seconds", type=float, default=40)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.autograd.set_detect_anomaly(True)
    angle = torch.rand(20_000) * 12
    plane = torch.stack([angle.cos(), angle.sin()], 1) * angle[:, None] / 6
    data = plane @ torch.randn(2, 8) + 0.1 * torch.randn(20_000, 8)
    model = Flow()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    meter = Meter(args.seconds)
    running, epoch = True, 0
    while running:
        for index in torch.randperm(len(data)).split(args.batch_size):
            optimizer.zero_grad()
            loss = -model.log_prob(data[index]).mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            optimizer.step()
            running = meter.step()
            if not running:
                break
        epoch += 1
        print(f"epoch {epoch} loss {loss.item():.4f}")
    meter.report()


if __name__ == "__main__":
    main()
