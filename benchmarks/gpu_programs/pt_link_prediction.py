"""Link prediction on one large graph: a graph network trained on full batches with sampled
negative edges."""
import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

SMOKE = bool(os.environ.get("SMOKE"))
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_float32_matmul_precision("high")

NODES = 300 if SMOKE else 100_000
EDGES = 2000 if SMOKE else 1_000_000
PAIRS = 200 if SMOKE else 150_000        # positive (and negative) pairs per step
FEATURES = 16 if SMOKE else 128
WIDTH, LAYERS = (16, 2) if SMOKE else (128, 2)
LOG_EVERY = 5 if SMOKE else 25


def wait():
    torch.cuda.is_available() and torch.cuda.synchronize()


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
        if self.mark is None and self.last - self.start > 0.3 * self.seconds:
            wait()
            self.mark = (self.count, time.perf_counter())
        return self.last - self.start < self.seconds

    def report(self):
        wait()
        count, since = self.mark
        print(f"STEPS {self.count - count} SECONDS {time.perf_counter() - since:.3f}")

def make_graph():
    """Edges mostly between nodes with nearby numbers; features carry a noisy position."""
    source = torch.randint(NODES, (EDGES,), device=DEVICE)
    hop = (torch.randn(EDGES, device=DEVICE) * NODES / 50).long()
    target = (source + hop) % NODES
    position = torch.arange(NODES, device=DEVICE)[:, None] / NODES
    frequency = torch.arange(1, FEATURES + 1, device=DEVICE)
    x = torch.sin(6.28 * position * frequency) + 0.5 * torch.randn(NODES, FEATURES, device=DEVICE)
    return x, torch.stack([source, target])


def adjacency(edges):
    """Symmetric normalised adjacency with self loops, as CSR."""
    loop = torch.arange(NODES, device=DEVICE)
    row = torch.cat([edges[0], edges[1], loop])
    col = torch.cat([edges[1], edges[0], loop])
    degree = torch.bincount(row, minlength=NODES).float()
    value = (degree[row] * degree[col]).rsqrt()
    coo = torch.sparse_coo_tensor(torch.stack([row, col]), value, (NODES, NODES), check_invariants=False)
    return coo.coalesce().to_sparse_csr()


class Propagate(torch.autograd.Function):
    """A @ x for a symmetric matrix A."""

    @staticmethod
    def forward(ctx, matrix, x):
        ctx.matrix = matrix
        return matrix @ x

    @staticmethod
    def backward(ctx, grad):
        return None, ctx.matrix @ grad.contiguous()


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(FEATURES, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, hop, matrix):
        x = F.relu(self.first(hop))
        for layer in self.layers:
            x = F.relu(layer(Propagate.apply(matrix, x)))
        return self.out(x)


class Quality:
    """Ranking quality of scored pairs, for the log."""

    def __init__(self):
        self.auc, self.precision = 0.0, 0.0

    def update(self, scores, labels):
        scores = scores.detach().cpu().numpy()
        labels = labels.cpu().numpy()
        order = np.argsort(-scores, kind="stable")
        hit = labels[order]
        found = np.cumsum(hit)
        positives, negatives = found[-1], len(hit) - found[-1]
        below = np.cumsum(1 - hit)
        self.auc = 1.0 - float((below * hit).sum() / (positives * negatives))
        self.precision = float((found / np.arange(1, len(hit) + 1) * hit).sum() / positives)


def main():
    torch.manual_seed(0)
    x, edges = make_graph()
    matrix = adjacency(edges)
    hop = matrix @ x                     # the first propagation has no weights
    model = Encoder().to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, fused=DEVICE == "cuda")
    labels = torch.cat([torch.ones(PAIRS, device=DEVICE), torch.zeros(PAIRS, device=DEVICE)])
    quality = Quality()

    meter, step = Meter(), 0
    while True:
        positive = edges[:, torch.randint(EDGES, (PAIRS,), device=DEVICE)]
        negative = torch.randint(NODES, (2, PAIRS), device=DEVICE)
        pairs = torch.cat([positive, negative], dim=1)
        z = model(hop, matrix)
        scores = (z.index_select(0, pairs[0]) * z.index_select(0, pairs[1])).sum(1)
        loss = F.binary_cross_entropy_with_logits(scores, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        quality.update(scores, labels)
        if step % LOG_EVERY == 0:
            print(f"step {step} loss {loss.item():.4f} auc {quality.auc:.4f} ap {quality.precision:.4f}")
        step += 1
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
