"""Estimate the speed of objects before an event camera from exponentially decaying time surfaces."""
import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

HEIGHT, WIDTH, EVENTS = 180, 240, 1500
DECAYS = (0.3, 0.55, 0.75)


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


class Camera:
    """Events at the edges of a blob that wanders over the field of view."""

    def __init__(self, seed=0):
        self.rng = np.random.default_rng(seed)
        self.position = np.array([HEIGHT / 2, WIDTH / 2])
        self.velocity = np.array([2.0, 3.0])

    def packet(self):
        self.velocity += self.rng.normal(0, 0.3, 2)
        self.velocity *= 0.98
        self.position += self.velocity
        for axis, size in enumerate((HEIGHT, WIDTH)):
            if not 15 < self.position[axis] < size - 15:
                self.velocity[axis] = -self.velocity[axis]
                self.position[axis] = np.clip(self.position[axis], 15, size - 15)
        angle = self.rng.uniform(0, 2 * np.pi, EVENTS)
        radius = 12 + self.rng.normal(0, 1.0, EVENTS)
        y = np.clip(self.position[0] + radius * np.sin(angle), 0, HEIGHT - 1).astype(np.int64)
        x = np.clip(self.position[1] + radius * np.cos(angle), 0, WIDTH - 1).astype(np.int64)
        toward = np.sin(angle) * self.velocity[0] + np.cos(angle) * self.velocity[1] > 0
        stray = self.rng.integers(0, HEIGHT * WIDTH, 60)
        cells = np.concatenate([y * WIDTH + x, stray])
        polarity = np.concatenate([toward.astype(np.int64), self.rng.integers(0, 2, 60)])
        return torch.from_numpy(polarity * HEIGHT * WIDTH + cells), torch.tensor(self.velocity, dtype=torch.float32)


class TimeSurface:
    """For each decay and polarity an image in which new events shine and old ones fade."""

    def __init__(self, decays):
        self.decay = torch.tensor(decays)[:, None]
        self.values = torch.zeros(len(decays), 2 * HEIGHT * WIDTH)

    def update(self, cells):
        self.values.mul_(self.decay)
        self.values[:, cells] = 1.0

    def images(self):
        return self.values.view(1, -1, HEIGHT, WIDTH)


class SpeedNet(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.stem = nn.Conv2d(channels, 12, 5, stride=4, padding=2)
        self.body = nn.Sequential(
            nn.Conv2d(12, 24, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(24, 32, 3, stride=2, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten())
        self.head = nn.Linear(32 * 16, 2)

    def forward(self, x):
        return self.head(self.body(F.relu(self.stem(x))))


def main():
    torch.manual_seed(0)
    camera, surface = Camera(), TimeSurface(DECAYS)
    for _ in range(800):
        surface.update(camera.packet()[0])
    model = SpeedNet(2 * len(DECAYS))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    meter = Meter()
    while True:
        cells, velocity = camera.packet()
        surface.update(cells)
        loss = F.mse_loss(model(surface.images())[0], velocity / 3)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if meter.count % 100 == 0:
            print(f"step {meter.count} loss {loss.item():.4f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
