"""Weekly demand forecast for many shops with a small GRU."""
import os
import time

import numpy as np
import pandas as pd
import torch
from torch import nn
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


FEATURES = ["sales", "price", "promo", "holiday", "sin_week", "cos_week"]
HISTORY, HORIZON = 52, 4


def make_frame(shops=60, weeks=260, seed=17):
    rng = np.random.default_rng(seed)
    week = np.arange(weeks)
    parts = []
    for shop in range(shops):
        level = rng.uniform(50, 400)
        season = 1 + 0.3 * np.sin(2 * np.pi * (week / 52 + rng.random()))
        price = rng.uniform(2, 9) * (1 + 0.05 * rng.standard_normal(weeks))
        promo = (rng.random(weeks) < 0.12).astype(float)
        holiday = ((week % 52) > 49).astype(float)
        sales = level * season * (1 + 0.5 * promo + 0.4 * holiday) * np.exp(0.1 * rng.standard_normal(weeks))
        parts.append(pd.DataFrame({
            "shop": shop, "week": week, "sales": np.log(sales), "price": price, "promo": promo, "holiday": holiday,
            "sin_week": np.sin(2 * np.pi * week / 52), "cos_week": np.cos(2 * np.pi * week / 52)}))
    return pd.concat(parts, ignore_index=True)


def standardize(frame):
    for column in ("sales", "price"):
        grouped = frame.groupby("shop")[column]
        frame[column] = (frame[column] - grouped.transform("mean")) / grouped.transform("std")
    return frame


class ShopWindows(Dataset):
    """One item: HISTORY weeks of features and the next HORIZON weeks of sales."""

    def __init__(self, frame):
        self.frame = frame
        self.starts = []
        for _, rows in frame.groupby("shop"):
            first = rows.index[0]
            self.starts += [first + k for k in range(len(rows) - HISTORY - HORIZON + 1)]

    def __len__(self):
        return len(self.starts)

    def __getitem__(self, item):
        start = self.starts[item]
        past = self.frame.iloc[start:start + HISTORY][FEATURES]
        future = self.frame.iloc[start + HISTORY:start + HISTORY + HORIZON]["sales"]
        x = torch.tensor(past.values, dtype=torch.float32)
        y = torch.tensor(future.values, dtype=torch.float32)
        return x, y


class DemandNet(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.gru = nn.GRU(len(FEATURES), hidden, batch_first=True)
        self.out = nn.Linear(hidden, HORIZON)

    def forward(self, x):
        _, last = self.gru(x)
        return self.out(last[-1])


def main():
    torch.manual_seed(17)
    frame = standardize(make_frame())
    loader = DataLoader(ShopWindows(frame), batch_size=64, shuffle=True, drop_last=True)
    net = DemandNet()
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    loss_of = nn.HuberLoss()
    meter, going, epoch = Meter(), True, 0
    while going:
        mean, count = 0.0, 0
        for x, y in loader:
            loss = loss_of(net(x), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            mean += loss.item()
            count += 1
            going = meter.step()
            if not going:
                break
        epoch += 1
        print(f"epoch {epoch} huber {mean / count:.4f}")
    meter.report()


if __name__ == "__main__":
    main()
