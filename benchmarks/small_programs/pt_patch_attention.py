"""Small vision transformer on synthetic 32x32 images."""
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

class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.width = heads, dim // heads
        self.q, self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        results = []
        for h in range(self.heads):
            s = slice(h * self.width, (h + 1) * self.width)
            scores = q[..., s] @ k[..., s].transpose(-2, -1) / self.width ** 0.5
            results.append(scores.softmax(dim=-1) @ v[..., s])
        return self.out(torch.cat(results, dim=-1))


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = Attention(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        x = x + self.attention(self.n1(x))
        return x + self.mlp(self.n2(x))


class PatchTransformer(nn.Module):
    def __init__(self, dim=64, heads=16, layers=4, patch=8, classes=10):
        super().__init__()
        self.embed = nn.Conv2d(3, dim, patch, patch)
        self.position = nn.Parameter(torch.randn(1, (32 // patch) ** 2, dim) * 0.02)
        self.layers = nn.Sequential(*[Layer(dim, heads) for _ in range(layers)])
        self.head = nn.Linear(dim, classes)

    def forward(self, image):
        x = self.embed(image).flatten(2).transpose(1, 2) + self.position
        return self.head(self.layers(x).mean(1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--seconds", type=float, default=40)
    args = parser.parse_args()
    torch.manual_seed(0)
    label = torch.randint(0, 10, (4096,))
    image = torch.randn(4096, 3, 32, 32) + 0.2 * label[:, None, None, None]
    model = PatchTransformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    meter = Meter(args.seconds)
    running, epoch = True, 0
    while running:
        for index in torch.randperm(len(image)).split(args.batch_size):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(image[index]), label[index])
            loss.backward()
            optimizer.step()
            running = meter.step()
            if not running:
                break
        epoch += 1
        print(f"epoch {epoch} loss {loss.item():.4f}")
    meter.report()


if __name__ == "__main__":
    main()
