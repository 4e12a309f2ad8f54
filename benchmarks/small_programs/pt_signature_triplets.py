"""Learn an embedding of handwritten signatures with a triplet loss over each batch's hardest pairs."""
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


class Encoder(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 5, stride=2, padding=2), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(32, 32, 3, stride=2, padding=1), nn.ReLU(),
            nn.Flatten(), nn.Linear(32 * 4 * 8, dim))

    def forward(self, x):
        return F.normalize(self.net(x), dim=1)


def triplet_loss(embeddings, labels, margin=0.3):
    """Each anchor with its farthest positive and its nearest negative."""
    distances = torch.cdist(embeddings, embeddings, compute_mode="donot_use_mm_for_euclid_dist")
    losses = []
    for i in range(len(labels)):
        same = labels == labels[i]
        other = ~same
        same[i] = False
        if same.any() and other.any():
            hardest_positive = distances[i][same].max()
            hardest_negative = distances[i][other].min()
            losses.append(F.relu(hardest_positive - hardest_negative + margin))
    return torch.stack(losses).mean()


class SignatureBatches:
    """Batches of several signatures from each of a few writers."""

    def __init__(self, images, writers, per_batch, samples, generator):
        self.images, self.per_batch, self.samples = images, per_batch, samples
        self.writers, self.generator = writers, generator
        self.by_writer = [torch.nonzero(writers == w).squeeze(1) for w in range(int(writers.max()) + 1)]

    def __iter__(self):
        while True:
            chosen = torch.randperm(len(self.by_writer), generator=self.generator)[:self.per_batch]
            index = torch.cat([
                self.by_writer[w][torch.randperm(len(self.by_writer[w]), generator=self.generator)[:self.samples]]
                for w in chosen.tolist()])
            yield self.images[index], self.writers[index]


def make_signatures(writers, each, generator):
    """Smooth strokes: a writer's own frequencies with small changes."""
    t = torch.linspace(0, 1, 400)
    frequency = 1 + 6 * torch.rand(writers, 1, 4, generator=generator)
    frequency = frequency + 0.08 * torch.randn(writers, each, 4, generator=generator)
    phase = 2 * torch.pi * torch.rand(writers, 1, 4, generator=generator)
    angle = 2 * torch.pi * frequency[..., None] * t + phase[..., None]
    x = (60 * t + 3 * torch.sin(angle[..., 0, :])).clamp(0, 63).long()
    y = (16 + 7 * torch.sin(angle[..., 1, :]) + 5 * torch.sin(angle[..., 2, :])).clamp(0, 31).long()
    images = torch.zeros(writers * each, 32 * 64)
    images.scatter_(1, (y * 64 + x).reshape(writers * each, -1), 1.0)
    return images.view(-1, 1, 32, 64), torch.arange(writers).repeat_interleave(each)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--writers", type=int, default=80)
    parser.add_argument("--writers-per-batch", type=int, default=12)
    parser.add_argument("--samples-per-writer", type=int, default=4)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    images, writers = make_signatures(args.writers, 12, generator)
    batches = SignatureBatches(images, writers, args.writers_per_batch, args.samples_per_writer, generator)
    model = Encoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    meter = Meter()
    for image, writer in batches:
        loss = triplet_loss(model(image), writer)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if meter.count % 50 == 0:
            print(f"step {meter.count} loss {loss.item():.4f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
