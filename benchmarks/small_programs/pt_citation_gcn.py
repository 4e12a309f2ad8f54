"""Two-layer graph convolution for node classification on a random citation-like graph."""
import argparse
import os
import time

import numpy as np
import scipy.sparse as sp
import torch
from torch import nn


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

def make_graph(nodes, features, classes, seed=0):
    rng = np.random.default_rng(seed)
    label = rng.integers(0, classes, nodes)
    src = np.repeat(np.arange(nodes), 5)
    dst = rng.integers(0, nodes, len(src))
    same = rng.random(len(src)) < 0.7
    order = np.argsort(label, kind="stable")
    rank = np.empty(nodes, int)
    rank[order] = np.arange(nodes)
    dst[same] = order[(rank[src[same]] + rng.integers(1, 20, same.sum())) % nodes]
    a = sp.coo_matrix((np.ones(len(src)), (src, dst)), (nodes, nodes))
    a = ((a + a.T + sp.eye(nodes)) > 0).astype(np.float32)
    d = sp.diags(1 / np.sqrt(np.asarray(a.sum(1)).ravel()))
    x = rng.normal(0, 1, (nodes, features)) + np.eye(classes, features)[label]
    return (d @ a @ d).tocoo(), torch.tensor(x, dtype=torch.float32), torch.tensor(label)


class GCN(nn.Module):
    def __init__(self, features, hidden, classes):
        super().__init__()
        self.fc1 = nn.Linear(features, hidden)
        self.fc2 = nn.Linear(hidden, classes)

    def forward(self, adj, x):
        h = torch.relu(adj @ self.fc1(x))
        h = nn.functional.dropout(h, 0.5, self.training)
        return adj @ self.fc2(h)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seconds", type=float, default=40)
    args = parser.parse_args()
    torch.manual_seed(0)
    a, x, label = make_graph(args.nodes, 300, 7)
    adj = torch.tensor(a.toarray(), dtype=torch.float32)
    train = torch.rand(args.nodes) < 0.3
    model = GCN(x.shape[1], args.hidden, 7)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, weight_decay=5e-4)
    meter = Meter(args.seconds)
    running, epoch = True, 0
    while running:
        optimizer.zero_grad()
        logits = model(adj, x)
        loss = nn.functional.cross_entropy(logits[train], label[train])
        loss.backward()
        optimizer.step()
        epoch += 1
        if epoch % 100 == 0:
            accuracy = (logits[~train].argmax(1) == label[~train]).float().mean()
            print(f"epoch {epoch} loss {loss.item():.4f} held out {accuracy.item():.3f}")
        running = meter.step()
    meter.report()


if __name__ == "__main__":
    main()
