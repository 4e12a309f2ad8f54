"""Classify tumour types from gene expression with a regularised network."""
import argparse
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


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


class ExpressionNet(nn.Module):
    def __init__(self, genes, hidden, types):
        super().__init__()
        self.norm = nn.BatchNorm1d(genes, affine=False)
        self.encoder = nn.Linear(genes, hidden)
        self.middle = nn.Linear(hidden, hidden)
        self.head = nn.Linear(hidden, types)

    def forward(self, x):
        x = F.relu(self.encoder(self.norm(x)))
        x = x + F.relu(self.middle(x))
        return self.head(F.dropout(x, 0.2, self.training))


def regularisation(model):
    """The sum of the squares of all parameters."""
    return sum(parameter.pow(2).sum() for parameter in model.parameters())


def make_cohort(patients, genes, types, generator):
    """Counts of transcripts in which some pathways depend on the tumour's type."""
    label = torch.randint(0, types, (patients,), generator=generator)
    pathway = torch.randn(types, 40, generator=generator)
    loading = torch.randn(40, genes, generator=generator) / 6
    activity = pathway[label] + 0.8 * torch.randn(patients, 40, generator=generator)
    rate = torch.exp(activity @ loading + 1.0).clamp(max=200)
    return torch.log1p(torch.poisson(rate, generator=generator)), label


def evaluate(model, x, y):
    model.eval()
    with torch.no_grad():
        accuracy = (model(x).argmax(1) == y).float().mean().item()
    model.train()
    return accuracy


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--genes", type=int, default=3000)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--types", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--penalty", type=float, default=1e-4)
    args = parser.parse_args()
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    x, y = make_cohort(1600, args.genes, args.types, generator)
    train_x, train_y, test_x, test_y = x[:1400], y[:1400], x[1400:], y[1400:]
    model = ExpressionNet(args.genes, args.hidden, args.types)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    meter = Meter()
    while True:
        pick = torch.randint(0, len(train_x), (args.batch_size,), generator=generator)
        fit = F.cross_entropy(model(train_x[pick]), train_y[pick])
        loss = fit + args.penalty * regularisation(model)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if meter.count % 50 == 0:
            print(f"step {meter.count} cross entropy {fit.item():.4f}")
        if not meter.step():
            break
    meter.report()
    print(f"test accuracy {evaluate(model, test_x, test_y):.3f}")


if __name__ == "__main__":
    main()
