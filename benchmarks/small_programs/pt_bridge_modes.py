"""Find weakened members of bridges from the frequencies at which they vibrate."""
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


class Truss(nn.Module):
    """Masses joined by springs; each spring's stiffness is a parameter of each bridge."""

    def __init__(self, bridges, masses, reach, generator):
        super().__init__()
        first = torch.arange(masses).repeat_interleave(reach)
        second = first + torch.arange(1, reach + 1).repeat(masses)
        inside = second < masses
        self.register_buffer("first", first[inside])
        self.register_buffer("second", second[inside])
        self.log_stiffness = nn.Parameter(0.05 * torch.randn(bridges, int(inside.sum()), generator=generator))
        self.register_buffer("ground", torch.full((masses,), 0.05))

    def stiffness_matrix(self, log_stiffness):
        k = log_stiffness.exp()
        count = len(self.ground)
        off = k.new_zeros(len(k), count * count).index_add(1, self.first * count + self.second, k)
        off = off.view(-1, count, count)
        off = off + off.mT
        return torch.diag_embed(off.sum(2) + self.ground) - off

    def forward(self, bridge):
        return self.modes(self.log_stiffness[bridge])

    def modes(self, log_stiffness):
        values = torch.linalg.eigvalsh(self.stiffness_matrix(log_stiffness))
        return values.clamp(min=1e-6).sqrt()


def make_measurements(truss, generator, weak=3):
    """Frequencies of bridges in which a few members lost stiffness."""
    true = torch.zeros_like(truss.log_stiffness)
    for row in true:
        row[torch.randperm(len(row), generator=generator)[:weak]] = -0.7
    with torch.no_grad():
        frequencies = truss.modes(true)
    noise = 1 + 1e-3 * torch.randn(frequencies.shape, generator=generator)
    return frequencies * noise, true


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bridges", type=int, default=24)
    parser.add_argument("--masses", type=int, default=240)
    parser.add_argument("--reach", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--prior", type=float, default=1e-6)
    args = parser.parse_args()
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    truss = Truss(args.bridges, args.masses, args.reach, generator)
    frequencies, true = make_measurements(truss, generator)
    optimizer = torch.optim.Adam(truss.parameters(), lr=args.lr)
    meter = Meter()
    while True:
        bridge = torch.randint(0, args.bridges, (args.batch_size,), generator=generator)
        loss = F.mse_loss(truss(bridge), frequencies[bridge])
        loss = loss + args.prior * truss.log_stiffness[bridge].abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if meter.count % 20 == 0:
            print(f"step {meter.count} loss {loss.item():.8f}")
        if not meter.step():
            break
    meter.report()
    print(f"error {(truss.log_stiffness - true).abs().mean().item():.4f}")


if __name__ == "__main__":
    main()
