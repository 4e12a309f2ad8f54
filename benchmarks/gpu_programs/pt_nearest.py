"""Answers nearest-neighbour requests over a catalogue of product embeddings with an inverted-file index."""
import os
import time

import torch
import torch.nn.functional as F

SMOKE = bool(os.environ.get("SMOKE"))
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ITEMS, DIM, CELLS = (2000, 16, 20) if SMOKE else (1_000_000, 128, 1024)
REQUEST, PROBES, TOP = (5, 4, 10) if SMOKE else (128, 16, 50)


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


def make_catalogue():
    g = torch.Generator(DEVICE).manual_seed(0)
    centres = F.normalize(torch.randn(CELLS, DIM, device=DEVICE, generator=g), dim=1)
    cell = torch.randint(0, CELLS, (ITEMS,), device=DEVICE, generator=g)
    noise = torch.randn(ITEMS, DIM, device=DEVICE, generator=g)
    return F.normalize(centres[cell] + 0.06 * noise, dim=1), centres


class Index:
    """Vectors are kept by cell; a query looks only into the cells whose centres are closest."""

    def __init__(self, vectors, centres):
        self.centres = centres
        cells = torch.cat([(part @ centres.T).argmax(1) for part in vectors.split(100_000)])
        self.order = cells.argsort()
        self.vectors = vectors[self.order].contiguous()
        counts = torch.bincount(cells, minlength=CELLS)
        rows = torch.arange(len(vectors), device=vectors.device)
        self.members = rows.split(counts.tolist())
        print(f"{CELLS} cells of {int(counts.min())} to {int(counts.max())} vectors")

    def search(self, queries):
        probes = (queries @ self.centres.T).topk(PROBES, dim=1).indices.tolist()
        values, found = [], []
        for query, cells in zip(queries, probes):
            rows = torch.cat([self.members[c] for c in cells])
            similarity = self.vectors[rows] @ query
            best = similarity.topk(TOP)
            values.append(best.values)
            found.append(rows[best.indices])
        return torch.stack(values), self.order[torch.stack(found)]


def requests(vectors):
    """Batches of queries near known products, as they arrive from the web servers (host memory)."""
    g = torch.Generator().manual_seed(5)
    batches = []
    for _ in range(20):
        pick = torch.randint(0, ITEMS, (REQUEST,), generator=g)
        queries = vectors[pick.to(DEVICE)].cpu() + 0.05 * torch.randn(REQUEST, DIM, generator=g)
        batches.append((F.normalize(queries, dim=1), pick))
    return batches


@torch.inference_mode()
def main():
    vectors, centres = make_catalogue()
    index = Index(vectors, centres)
    batches = requests(vectors)
    del vectors

    meter = Meter()
    answered, hits, total = 0, 0, 0.0
    while True:
        queries, truth = batches[answered % len(batches)]
        values, ids = index.search(queries.to(DEVICE))
        values, ids = values.cpu(), ids.cpu()
        hits += int((ids == truth[:, None]).any(1).sum())
        total += float(values.mean())
        answered += 1
        if answered % 50 == 0:
            recall = hits / (answered * REQUEST)
            print(f"{answered} requests, recall {recall:.4f}, mean similarity {total / answered:.6f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
