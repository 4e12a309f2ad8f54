"""Train a small causal transformer on drum patterns."""
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
VOCABULARY, LENGTH, DIM, HEADS, DEPTH, BATCH = 96, 96, 128, 4, 3, 4


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
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.out = nn.Linear(DIM, DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(approximate="tanh"), nn.Linear(4 * DIM, DIM))

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, n, DIM))
        return x + self.mlp(self.norm2(x))


class DrumModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, DIM)
        self.position = nn.Parameter(0.02 * torch.randn(LENGTH, DIM))
        self.blocks = nn.Sequential(*[Block() for _ in range(DEPTH)])
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCABULARY, bias=False)
        self.head.weight = self.token.weight

    def forward(self, ids):
        x = 0.1 * self.token(ids) + self.position
        return self.head(self.norm(self.blocks(x)))


def make_song(bars=4000):
    """Patterns of sixteen hits, repeated with small variations."""
    patterns = torch.randint(0, VOCABULARY, (40, 16))
    song = patterns[torch.randint(0, 40, (bars,))]
    noise = torch.rand(bars, 16) < 0.05
    return torch.where(noise, torch.randint(0, VOCABULARY, (bars, 16)), song).reshape(-1)


def main():
    song = make_song()
    windows = song.unfold(0, LENGTH + 1, 1)
    model = DrumModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    meter = Meter()
    while True:
        batch = windows[torch.randint(0, len(windows), (BATCH,))]
        logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if meter.count % 20 == 0:
            print(f"step {meter.count} loss {loss.item():.5f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
