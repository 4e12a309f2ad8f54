"""Denoising autoencoder on insurance claim records."""
import argparse
import os
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


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

def make_records(rows, columns):
    rng = np.random.default_rng(1)
    latent = rng.normal(size=(rows, 12))
    mix = rng.normal(size=(12, columns))
    records = np.tanh(latent @ mix) + rng.normal(scale=0.1, size=(rows, columns))
    return (records - records.mean(0)) / records.std(0)


class Autoencoder(nn.Module):
    def __init__(self, columns, hidden=256, code=16):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(columns, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, code))
        self.decoder = nn.Sequential(nn.Linear(code, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, columns))

    def forward(self, x):
        return self.decoder(self.encoder(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--noise", type=float, default=0.2)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seconds", type=float, default=40)
    args = parser.parse_args()
    torch.manual_seed(0)
    records = torch.from_numpy(make_records(30_000, 120))
    data = TensorDataset(records)
    sampler = BatchSampler(RandomSampler(data), args.batch_size, drop_last=True)
    loader = DataLoader(data, sampler=sampler, batch_size=None)
    model = Autoencoder(records.shape[1]).to(records.dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    meter = Meter(args.seconds)
    running, epoch = True, 0
    while running:
        total, batches = 0.0, 0
        for (x,) in loader:
            noisy = x + args.noise * torch.randn_like(x)
            loss = nn.functional.mse_loss(model(noisy), x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total, batches = total + loss.detach(), batches + 1
            running = meter.step()
            if not running:
                break
        epoch += 1
        print(f"epoch {epoch} loss {float(total) / batches:.4f}")
    meter.report()


if __name__ == "__main__":
    main()
