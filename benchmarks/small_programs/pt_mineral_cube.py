"""Map minerals from a hyperspectral image cube, one spectrum per pixel."""
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
BANDS, SIDE, CLASSES, BATCH = 120, 600, 9, 384


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

class Cube:
    """An image cube in band-sequential order, as the sensor delivers it."""

    def __init__(self, bands, side):
        self.labels = torch.randint(0, CLASSES, (side // 20, side // 20))
        self.labels = self.labels.repeat_interleave(20, 0).repeat_interleave(20, 1).reshape(-1)
        signatures = torch.rand(bands, CLASSES).cumsum(0) / bands
        self.values = torch.empty(bands, side * side)
        for band in range(bands):
            self.values[band] = signatures[band][self.labels]
            self.values[band] += 0.05 * torch.rand(side * side)
        self.mean = self.values[:, ::50].mean(1)
        self.scale = self.values[:, ::50].std(1)

    def spectra(self, pixels):
        """Standardised spectra of some pixels."""
        raw = self.values[:, pixels].T
        return (raw - self.mean) / self.scale


class SpectrumNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(BANDS, 96), nn.ReLU(), nn.Linear(96, 48), nn.ReLU(),
                                 nn.Linear(48, CLASSES))

    def forward(self, x):
        return self.net(x)


def main():
    cube = Cube(BANDS, SIDE)
    model = SpectrumNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    meter = Meter()
    while True:
        pixels = torch.randint(0, SIDE * SIDE, (BATCH,))
        logits = model(cube.spectra(pixels))
        loss = F.cross_entropy(logits, cube.labels[pixels])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if meter.count % 50 == 0:
            accuracy = (logits.argmax(1) == cube.labels[pixels]).float().mean()
            print(f"step {meter.count} loss {loss.item():.5f} accuracy {accuracy.item():.3f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
