"""Two-tower retrieval with recall on held-out pairs."""
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

def tower(features, dim):
    return nn.Sequential(nn.Linear(features, 192), nn.ReLU(), nn.Linear(192, 192), nn.ReLU(), nn.Linear(192, dim))


class TwoTower(nn.Module):
    def __init__(self, features, dim=64):
        super().__init__()
        self.query, self.item = tower(features, dim), tower(features, dim)

    def forward(self, q, d):
        q = nn.functional.normalize(self.query(q), dim=1)
        d = nn.functional.normalize(self.item(d), dim=1)
        return q @ d.T


@torch.no_grad()
def recall(model, q, d, k=10):
    model.eval()
    top = model(q, d).topk(k, dim=1).indices
    model.train()
    return (top == torch.arange(len(q))[:, None]).any(1).float().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--eval-every", type=int, default=5)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seconds", type=float, default=40)
    args = parser.parse_args()
    torch.manual_seed(0)
    hidden = torch.randn(30_000, 16)
    q = torch.tanh(hidden @ torch.randn(16, 80)) + 0.2 * torch.randn(30_000, 80)
    d = torch.tanh(hidden @ torch.randn(16, 80)) + 0.2 * torch.randn(30_000, 80)
    held_q, held_d = q[:1500], d[:1500]
    q, d = q[1500:], d[1500:]
    model = TwoTower(80)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    best = 0.0
    meter = Meter(args.seconds)
    running, step = True, 0
    while running:
        for index in torch.randperm(len(q)).split(args.batch_size):
            loss = nn.functional.cross_entropy(model(q[index], d[index]) / 0.1, torch.arange(len(index)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % args.eval_every == 0:
                best = max(best, recall(model, held_q, held_d))
            if step % 250 == 0:
                print(f"step {step} loss {loss.item():.4f} best recall {best:.3f}")
            running = meter.step()
            if not running:
                break
    meter.report()


if __name__ == "__main__":
    main()
