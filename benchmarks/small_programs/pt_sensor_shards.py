"""Classify windows of multichannel sensor recordings with a small 1-d CNN."""
import argparse
import os
import pathlib
import tempfile
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


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

def make_data(folder, shards=12, rows=64, channels=16, length=256):
    rng = np.random.default_rng(0)
    for i in range(shards):
        y = rng.integers(0, 6, rows)
        t = np.linspace(0, 8, length)
        x = np.sin(t[None, None] * (1 + y[:, None, None])) + rng.normal(0, 1, (rows, channels, length))
        np.savez(folder / f"part-{i:03d}.npz", x=x.astype(np.float32), y=y)


class SensorWindows(Dataset):
    def __init__(self, folder, rows=64):
        self.files = sorted(folder.glob("part-*.npz"))
        self.rows = rows

    def __len__(self):
        return len(self.files) * self.rows

    def __getitem__(self, index):
        part, row = divmod(index, self.rows)
        data = np.load(self.files[part])
        x, y = data["x"][row], data["y"][row]
        x = (x - x.mean(axis=1, keepdims=True)) / (x.std(axis=1, keepdims=True) + 1e-5)
        return torch.from_numpy(x), int(y)


def build_model(channels=16, classes=6):
    return nn.Sequential(
        nn.Conv1d(channels, 48, 7, padding=3), nn.ReLU(), nn.MaxPool1d(2),
        nn.Conv1d(48, 64, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2),
        nn.Conv1d(64, 64, 5, padding=2), nn.ReLU(), nn.AdaptiveAvgPool1d(1),
        nn.Flatten(), nn.Linear(64, classes),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seconds", type=float, default=40)
    args = parser.parse_args()
    torch.manual_seed(0)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="sensor"))
    make_data(folder)
    loader = DataLoader(SensorWindows(folder), batch_size=args.batch_size, shuffle=True, drop_last=True)
    model = build_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    criterion = nn.CrossEntropyLoss()
    meter = Meter(args.seconds)
    running, epoch = True, 0
    while running:
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            running = meter.step()
            if not running:
                break
        epoch += 1
        if epoch % 5 == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}")
    meter.report()


if __name__ == "__main__":
    main()
