"""Predict where the ball will be from the tracks of the players: a transformer over moments of a match."""
import argparse
import math
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

PLAYERS = 22


class Meter:
    """Counts steps and says when the time budget is used up."""

    def __init__(self, seconds=40):
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


class Block(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self, dim, heads, hidden):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, dim))

    def forward(self, x):
        h = self.norm1(x)
        h, _ = self.attention(h, h, h)
        x = x + h
        return x + self.mlp(self.norm2(x))


class BallModel(nn.Module):
    def __init__(self, length, dim=64, heads=8, depth=2):
        super().__init__()
        self.embed = nn.Linear(2 * PLAYERS, dim)
        position = torch.arange(length)[:, None] / 1000 ** (torch.arange(0, dim, 2) / dim)
        self.register_buffer("position", torch.cat([position.sin(), position.cos()], dim=1))
        self.blocks = nn.Sequential(*[Block(dim, heads, 2 * dim) for _ in range(depth)])
        self.head = nn.Linear(dim, 2)

    def forward(self, tracks):
        return self.head(self.blocks(self.embed(tracks) + self.position))


def make_match(moments, generator):
    """The ball wanders, the players follow it from their own places."""
    step = torch.randn(moments, 2, generator=generator)
    ball = torch.zeros(moments, 2)
    velocity = torch.zeros(2)
    for i in range(1, moments):
        velocity = 0.9 * velocity + 0.02 * step[i]
        ball[i] = (0.995 * ball[i - 1] + velocity).clamp(-1, 1)
    home = torch.rand(PLAYERS, 2, generator=generator) * 2 - 1
    eager = torch.rand(PLAYERS, 1, generator=generator) * 0.6
    players = home + eager * (ball[:, None] - home)
    players = players + 0.02 * torch.randn(moments, PLAYERS, 2, generator=generator)
    return players.flatten(1), ball


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    players, ball = make_match(6000, generator)
    model = BallModel(args.length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    offsets = torch.arange(args.length)
    meter = Meter()
    while True:
        start = torch.randint(0, len(players) - args.length, (args.batch_size, 1), generator=generator)
        window = start + offsets
        loss = F.mse_loss(model(players[window]), ball[window])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if meter.count % 20 == 0:
            print(f"step {meter.count} error {math.sqrt(loss.item()):.4f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
