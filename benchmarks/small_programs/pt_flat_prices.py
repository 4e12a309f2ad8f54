"""Predict the rent of a flat from its features and the visits to its advertisement."""
import argparse
import os
import sqlite3
import tempfile
import time

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


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


def create_database(path, flats, visits, rng):
    """Two tables as the web site exports them."""
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE flats (id INTEGER PRIMARY KEY, area REAL, rooms REAL, floor REAL, age REAL, rent REAL)")
    connection.execute("CREATE TABLE visits (day INTEGER, flat INTEGER, seconds REAL, photos REAL, mobile REAL)")
    area = rng.gamma(6.0, 12.0, flats)
    rooms = np.clip(np.round(area / 24 + rng.normal(0, 0.5, flats)), 1, 8)
    floor, age = rng.integers(0, 9, flats), rng.integers(0, 90, flats)
    interest = rng.normal(0, 1, flats)
    rent = 9 * area + 40 * floor - 2 * age + 150 * interest + rng.normal(0, 20, flats)
    connection.executemany("INSERT INTO flats VALUES (?, ?, ?, ?, ?, ?)", (
        (i, float(area[i]), float(rooms[i]), float(floor[i]), float(age[i]), float(rent[i])) for i in range(flats)))
    of = rng.integers(0, flats, visits)
    seconds = np.exp(3 + 0.6 * interest[of] + rng.normal(0, 0.5, visits))
    day, photos, mobile = np.arange(visits) // 500, rng.integers(0, 12, visits), rng.integers(0, 2, visits)
    columns = day, of, seconds, photos, mobile
    connection.executemany("INSERT INTO visits VALUES (?, ?, ?, ?, ?)", zip(*(c.tolist() for c in columns)))
    connection.commit()
    connection.close()


class Advertisements(Dataset):
    def __init__(self, path, length=24):
        self.connection = sqlite3.connect(path)
        self.length = length
        self.ids = [row[0] for row in self.connection.execute("SELECT id FROM flats ORDER BY id")]

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        flat = self.ids[index]
        *features, rent = self.connection.execute(
            "SELECT area, rooms, floor, age, rent FROM flats WHERE id = ?", (flat,)).fetchone()
        rows = self.connection.execute(
            "SELECT seconds, photos, mobile FROM visits WHERE flat = ? ORDER BY day DESC, rowid DESC LIMIT ?",
            (flat, self.length)).fetchall()
        visits = np.zeros((self.length, 3), np.float32)
        if rows:
            visits[:len(rows)] = rows
        visits[:, 0] = np.log1p(visits[:, 0])
        scaled = np.array(features, np.float32) / np.array([70, 3, 4, 45], np.float32)
        return torch.from_numpy(scaled), torch.from_numpy(visits), np.float32(rent / 1000)


class RentModel(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.visits = nn.GRU(3, width, batch_first=True)
        self.head = nn.Sequential(nn.Linear(width + 4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, features, visits):
        _, state = self.visits(visits)
        return self.head(torch.cat([features, state[-1]], dim=1)).squeeze(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--flats", type=int, default=2000)
    parser.add_argument("--visits", type=int, default=40_000)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    torch.manual_seed(0)
    meter = Meter()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "site.db")
        create_database(path, args.flats, args.visits, np.random.default_rng(0))
        loader = DataLoader(Advertisements(path), args.batch_size, shuffle=True, drop_last=True)
        model = RentModel()
        optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
        running = True
        while running:
            for features, visits, rent in loader:
                loss = nn.functional.smooth_l1_loss(model(features, visits), rent)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if meter.count % 50 == 0:
                    print(f"step {meter.count} loss {loss.item():.4f}")
                running = meter.step()
                if not running:
                    break
    meter.report()


if __name__ == "__main__":
    main()
