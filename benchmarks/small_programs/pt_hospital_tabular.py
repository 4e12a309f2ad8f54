# Readmission risk from coded hospital stays.
# Converted from the notebook readmission_v4.ipynb
import os
import time

import numpy as np
import torch
import torch.nn as nn


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


# %% data
rng = np.random.default_rng(11)
torch.manual_seed(11)
ROWS, BATCH, DIM = 40_000, 256, 6
N_CODES, N_NUMERIC = 90, 14
sizes = rng.integers(5, 120, size=N_CODES).tolist()

codes = np.stack([rng.integers(0, s, size=ROWS) for s in sizes], axis=1)
numeric = rng.normal(size=(ROWS, N_NUMERIC)).astype(np.float32)
effects = [rng.normal(scale=0.25, size=s) for s in sizes]
score = sum(e[codes[:, j]] for j, e in enumerate(effects)) + numeric @ rng.normal(scale=0.3, size=N_NUMERIC)
target = (score + rng.logistic(size=ROWS) > 0.5).astype(np.float32)

codes = torch.from_numpy(codes)
numeric = torch.from_numpy(numeric)
target = torch.from_numpy(target)
n_train = int(0.9 * ROWS)


# %% model
class RiskNet(nn.Module):
    def __init__(self, sizes, dim, n_numeric):
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(s, dim) for s in sizes])
        self.numeric_norm = nn.BatchNorm1d(n_numeric)
        self.mlp = nn.Sequential(
            nn.Linear(len(sizes) * dim + n_numeric, 128), nn.ReLU(), nn.Dropout(0.2),
            nn.Linear(128, 64), nn.ReLU(),
            nn.Linear(64, 1),
        )

    def forward(self, codes, numeric):
        columns = [table(codes[:, j]) for j, table in enumerate(self.tables)]
        columns.append(self.numeric_norm(numeric))
        return self.mlp(torch.cat(columns, dim=1)).squeeze(1)


model = RiskNet(sizes, DIM, N_NUMERIC)
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)


def auc(scores, labels):
    order = scores.argsort()
    ranks = torch.empty_like(order, dtype=torch.double)
    ranks[order] = torch.arange(1, len(scores) + 1, dtype=torch.double)
    pos = labels.sum().double()
    neg = len(labels) - pos
    return float((ranks[labels > 0.5].sum() - pos * (pos + 1) / 2) / (pos * neg))


# %% training
meter = Meter()
going = True
epoch = 0
while going:
    model.train()
    total, batches = torch.zeros(()), 0
    for rows in torch.randperm(n_train).split(BATCH):
        output = model(codes[rows], numeric[rows])
        loss = criterion(output, target[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
        batches += 1
        going = meter.step()
        if not going:
            break
    epoch += 1
    if going:
        model.eval()
        with torch.no_grad():
            held_out = model(codes[n_train:], numeric[n_train:])
        print(f"epoch {epoch:3d}  loss {total.item() / batches:.4f}  auc {auc(held_out, target[n_train:]):.4f}")
meter.report()
