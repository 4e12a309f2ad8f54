"""Masked-token pre-training on made-up molecule strings (BERT style, fragment vocabulary)."""
import os
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


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


@dataclass
class Config:
    vocab: int = 4000
    length: int = 64
    width: int = 96
    heads: int = 4
    layers: int = 2
    batch: int = 16
    mask_rate: float = 0.15
    lr: float = 5e-4


PAD, MASK, FIRST = 0, 1, 2


def fake_molecules(count, cfg, seed=3):
    """Fragments follow each other by a sparse random grammar."""
    rng = np.random.default_rng(seed)
    follow = rng.integers(FIRST, cfg.vocab, size=(cfg.vocab, 6))
    tokens = np.zeros((count, cfg.length), np.int64)
    state = rng.integers(FIRST, cfg.vocab, size=count)
    for t in range(cfg.length):
        tokens[:, t] = state
        state = follow[state, rng.integers(0, 6, size=count)]
    return torch.from_numpy(tokens)


def corrupt(tokens, cfg):
    labels = torch.full_like(tokens, -100)
    chosen = torch.rand(tokens.shape) < cfg.mask_rate
    labels[chosen] = tokens[chosen]
    dice = torch.rand(tokens.shape)
    inputs = tokens.clone()
    inputs[chosen & (dice < 0.8)] = MASK
    swap = chosen & (dice > 0.9)
    inputs[swap] = torch.randint(FIRST, cfg.vocab, (int(swap.sum()),))
    return inputs, labels


class MoleculeBert(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.tokens = nn.Embedding(cfg.vocab, cfg.width)
        self.places = nn.Parameter(0.02 * torch.randn(cfg.length, cfg.width))
        layer = nn.TransformerEncoderLayer(cfg.width, cfg.heads, 4 * cfg.width, dropout=0.0,
                                           activation="gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, cfg.layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(cfg.width)
        self.bias = nn.Parameter(torch.zeros(cfg.vocab))

    def forward(self, inputs, labels):
        h = self.norm(self.encoder(self.tokens(inputs) + self.places))
        logits = F.linear(h, self.tokens.weight, self.bias)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        return loss


class Pretrainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.data = fake_molecules(3000, cfg)
        self.model = MoleculeBert(cfg)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda s: min(1.0, (s + 1) / 100))
        self.history = []

    def batches(self):
        while True:
            for pick in torch.randperm(len(self.data)).split(self.cfg.batch):
                yield corrupt(self.data[pick], self.cfg)

    def run(self):
        meter = Meter()
        for number, (inputs, labels) in enumerate(self.batches()):
            loss = self.model(inputs, labels)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
            self.history.append(loss.detach())
            if number % 50 == 49:
                print(f"{number + 1:6d}  loss {torch.stack(self.history[-50:]).mean():.4f}")
            if not meter.step():
                break
        meter.report()


if __name__ == "__main__":
    torch.manual_seed(0)
    Pretrainer(Config()).run()
