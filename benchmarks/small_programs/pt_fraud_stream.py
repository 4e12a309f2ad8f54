"""Online training of a card fraud detector with a rolling quality figure."""
import os
import time
from collections import deque

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
FEATURES, MERCHANTS, BATCH, WINDOW = 40, 500, 128, 160


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

class RollingAuc:
    """Area under the ROC curve over the most recent batches."""

    def __init__(self, window):
        self.scores = deque(maxlen=window)
        self.labels = deque(maxlen=window)
        self.value = float("nan")

    def add(self, scores, labels):
        self.scores.append(scores.detach().numpy())
        self.labels.append(labels.numpy())
        self.value = self.compute()

    def compute(self):
        scores, labels = np.concatenate(self.scores), np.concatenate(self.labels)
        ranks = np.empty(len(scores))
        ranks[np.argsort(scores, kind="stable")] = np.arange(1, len(scores) + 1)
        positive = labels > 0.5
        p, n = positive.sum(), (~positive).sum()
        if p == 0 or n == 0:
            return float("nan")
        return (ranks[positive].sum() - p * (p + 1) / 2) / (p * n)


class FraudNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.merchant = nn.Embedding(MERCHANTS, 16)
        self.net = nn.Sequential(nn.Linear(FEATURES + 16, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(),
                                 nn.Linear(64, 1))

    def forward(self, features, merchant):
        return self.net(torch.cat([features, self.merchant(merchant)], dim=-1)).squeeze(-1)


def make_transactions(count=30_000):
    features = torch.randn(count, FEATURES)
    merchant = torch.randint(0, MERCHANTS, (count,))
    risk = features @ torch.randn(FEATURES) * 0.4 + torch.randn(MERCHANTS)[merchant] - 3.5
    return features, merchant, torch.bernoulli(torch.sigmoid(risk))


def main():
    features, merchant, fraud = make_transactions()
    model = FraudNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    auc = RollingAuc(WINDOW)
    with torch.no_grad():
        for i in range(WINDOW):
            part = slice(i * BATCH, (i + 1) * BATCH)
            auc.scores.append(model(features[part], merchant[part]).numpy())
            auc.labels.append(fraud[part].numpy())
    weight = torch.tensor(5.0)
    meter = Meter()
    while True:
        start = meter.count * BATCH % (len(features) - BATCH)
        part = slice(start, start + BATCH)
        logits = model(features[part], merchant[part])
        loss = F.binary_cross_entropy_with_logits(logits, fraud[part], pos_weight=weight)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        auc.add(logits, fraud[part])
        if meter.count % 50 == 0:
            print(f"step {meter.count} loss {loss.item():.5f} auc {auc.value:.4f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
