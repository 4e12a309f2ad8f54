"""Predict epigenomic signal tracks from DNA with a small attention network."""
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
SEQ, TRACKS, DIM, HEADS, DEPTH, BATCH = 2560, 12, 64, 4, 2, 1


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

class KernelAttention(nn.Module):
    """Softmax-free attention with the elu + 1 feature map."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        weights = q @ k.transpose(-2, -1)
        y = (weights @ v) / weights.sum(-1, keepdim=True)
        return self.out(y.transpose(1, 2).reshape(b, n, d))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = KernelAttention(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class TrackModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv1d(4, 32, 9, padding=4), nn.ReLU(), nn.MaxPool1d(2),
                                  nn.Conv1d(32, DIM, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2))
        self.blocks = nn.ModuleList([Block(DIM, HEADS) for _ in range(DEPTH)])
        self.head = nn.Linear(DIM, TRACKS)

    def forward(self, dna):
        x = self.stem(dna).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return F.softplus(self.head(x))


def make_genome(length=400_000):
    bases = torch.randint(0, 4, (length,))
    motif = F.conv1d(F.one_hot(bases, 4).T.float()[None], torch.randn(TRACKS, 4, 9), padding=4)[0]
    signal = F.avg_pool1d(motif.relu()[None], 4)[0]
    return F.one_hot(bases, 4).T.float().contiguous(), signal


def main():
    genome, signal = make_genome()
    model = TrackModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    meter = Meter()
    while True:
        starts = torch.randint(0, (genome.shape[1] - SEQ) // 4, (BATCH,)).tolist()
        dna = torch.stack([genome[:, 4 * s:4 * s + SEQ] for s in starts])
        target = torch.stack([signal[:, s:s + SEQ // 4].T for s in starts])
        loss = F.poisson_nll_loss(model(dna), target, log_input=False)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if meter.count % 10 == 0:
            print(f"step {meter.count} loss {loss.item():.5f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
