"""Forecast hourly prices with an LSTM."""
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

def make_prices(hours):
    t = torch.arange(hours).float()
    walk = torch.cumsum(0.05 * torch.randn(hours, 3), 0)
    daily = torch.sin(2 * torch.pi * t / 24)[:, None] * torch.tensor([1.0, 0.5, 0.2])
    return daily + walk - walk.mean(0)


class Forecaster(nn.Module):
    def __init__(self, features=3, hidden=64, ahead=6):
        super().__init__()
        self.hidden = hidden
        self.rnn = nn.LSTMCell(features, hidden)
        self.head = nn.Linear(hidden, ahead)

    def forward(self, x):
        h = x.new_zeros(len(x), self.hidden)
        c = torch.zeros_like(h)
        for t in range(x.shape[1]):
            h, c = self.rnn(x[:, t], (h, c))
        return self.head(h)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=48)
    parser.add_argument("--window", type=int, default=72)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seconds", type=float, default=40)
    args = parser.parse_args()
    torch.manual_seed(0)
    prices = make_prices(20_000)
    windows = prices.unfold(0, args.window + 6, 1).transpose(1, 2)
    model = Forecaster()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    meter = Meter(args.seconds)
    running, step = True, 0
    while running:
        for index in torch.randperm(len(windows)).split(args.batch_size):
            batch = windows[index]
            optimizer.zero_grad()
            loss = nn.functional.smooth_l1_loss(model(batch[:, :args.window]), batch[:, args.window:, 0])
            loss.backward()
            optimizer.step()
            step += 1
            if step % 100 == 0:
                print(f"step {step} loss {loss.item():.4f}")
            running = meter.step()
            if not running:
                break
    meter.report()


if __name__ == "__main__":
    main()
