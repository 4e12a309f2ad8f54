"""Matrix factorisation with biases on synthetic ratings."""
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

class Factors(nn.Module):
    def __init__(self, users, items, dim):
        super().__init__()
        self.user = nn.Embedding(users, dim)
        self.item = nn.Embedding(items, dim)
        nn.init.normal_(self.user.weight, std=0.1)
        nn.init.normal_(self.item.weight, std=0.1)
        self.mlp = nn.Sequential(nn.Linear(2 * dim, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, u, i):
        u, i = self.user(u), self.item(i)
        return (u * i).sum(-1) + self.mlp(torch.cat([u, i], -1)).squeeze(-1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--users", type=int, default=200_000)
    parser.add_argument("--items", type=int, default=60_000)
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--lr", type=float, default=0.5)
    parser.add_argument("--seconds", type=float, default=40)
    args = parser.parse_args()
    torch.manual_seed(0)
    n = 2_000_000
    u = torch.randint(0, args.users, (n,))
    i = torch.randint(0, args.items, (n,))
    r = ((u * 31 + i * 17) % 50).float() / 10
    model = Factors(args.users, args.items, args.dim)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    meter = Meter(args.seconds)
    running, step, total = True, 0, 0.0
    while running:
        for start in range(0, n - args.batch_size, args.batch_size):
            s = slice(start, start + args.batch_size)
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(u[s], i[s]), r[s])
            loss.backward()
            optimizer.step()
            step += 1
            if step % 200 == 0:
                print(f"step {step} mse {loss.item():.4f}")
            running = meter.step()
            if not running:
                break
    meter.report()


if __name__ == "__main__":
    main()
