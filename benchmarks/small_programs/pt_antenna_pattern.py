"""Learn phase settings that steer an antenna array towards requested directions."""
import os
import time

import numpy as np
import torch
import torch.nn as nn

torch.manual_seed(0)
ELEMENTS, ANGLES, BATCH, WAVELENGTH = 32, 121, 16, 0.1


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

class Array:
    """A linear array with slightly jittered element positions."""

    def __init__(self, elements):
        rng = np.random.default_rng(0)
        spacing = WAVELENGTH / 2
        positions = spacing * (np.arange(elements) + rng.normal(0, 0.05, elements))
        self.angles = np.deg2rad(np.linspace(-60, 60, ANGLES))
        path = 2 * np.pi / WAVELENGTH * np.outer(np.sin(self.angles), positions)
        self.path = torch.from_numpy(path)
        self.taper = torch.from_numpy(np.hamming(elements))

    def power(self, phases):
        """Radiated power per angle for a batch of element phases."""
        total = self.path + phases[:, None, :]
        real = (self.taper * torch.cos(total)).sum(-1)
        imaginary = (self.taper * torch.sin(total)).sum(-1)
        return (real ** 2 + imaginary ** 2) / self.taper.sum() ** 2

    def wanted(self, directions):
        """A Gaussian beam around each requested direction."""
        angles = torch.tensor(self.angles, dtype=directions.dtype)
        return torch.exp(-((angles - directions[:, None]) / 0.06) ** 2)


class PhaseNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(),
                                 nn.Linear(128, ELEMENTS))

    def forward(self, directions):
        features = torch.stack([directions, directions.sin(), directions.cos()], dim=-1)
        return torch.pi * self.net(features)


def pattern_loss(power, wanted):
    shape = ((power - wanted) ** 2).mean()
    sidelobes = (power * (wanted < 0.05)).amax(-1).mean()
    return shape + 0.1 * sidelobes


def main():
    array = Array(ELEMENTS)
    model = PhaseNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    meter = Meter()
    while True:
        directions = (torch.rand(BATCH) - 0.5) * 1.6
        power = array.power(model(directions))
        loss = pattern_loss(power, array.wanted(directions))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if meter.count % 50 == 0:
            print(f"step {meter.count} loss {loss.item():.5f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
