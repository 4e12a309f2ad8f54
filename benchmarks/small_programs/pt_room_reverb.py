"""Estimate a room's impulse response from pairs of dry and recorded sound."""
import math
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
RATE, TAPS, CLIP, BATCH = 8000, 1200, 6000, 4


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

class Room(nn.Module):
    """A decaying impulse response with a learned envelope, and a small equaliser."""

    def __init__(self, taps):
        super().__init__()
        self.response = nn.Parameter(0.02 * torch.randn(taps))
        self.decay = nn.Parameter(torch.tensor(-2.0))
        self.register_buffer("seconds", torch.arange(taps) / RATE)
        self.equaliser = nn.Conv1d(1, 1, 15, padding=7, bias=False)
        with torch.no_grad():
            self.equaliser.weight.zero_()
            self.equaliser.weight[0, 0, 7] = 1.0

    def impulse(self):
        return self.response * torch.exp(-self.seconds * F.softplus(self.decay) * 20)

    def forward(self, dry):
        h = self.impulse()
        padded = F.pad(dry, (h.numel() - 1, 0))
        wet = F.conv1d(padded[:, None], h.flip(0)[None, None])
        return self.equaliser(wet)[:, 0]


def spectral_loss(a, b, sizes=(128, 512)):
    loss = F.l1_loss(a, b)
    for size in sizes:
        window = torch.hann_window(size)
        sa = torch.stft(a, size, size // 2, window=window, return_complex=True).abs()
        sb = torch.stft(b, size, size // 2, window=window, return_complex=True).abs()
        loss = loss + F.l1_loss(torch.log(sa + 1e-3), torch.log(sb + 1e-3))
    return loss


def make_recordings(clips=64):
    t = torch.arange(CLIP) / RATE
    pitch = 80 + 600 * torch.rand(clips, 1)
    dry = torch.sin(2 * math.pi * pitch * t) * torch.rand(clips, 1) + 0.1 * torch.randn(clips, CLIP)
    true = torch.randn(TAPS) * torch.exp(-torch.arange(TAPS) / (0.05 * RATE)) * 0.1
    true[0] = 1.0
    size = CLIP + TAPS
    wet = torch.fft.irfft(torch.fft.rfft(dry, size) * torch.fft.rfft(true, size), size)[:, :CLIP]
    return dry, wet + 0.01 * torch.randn_like(wet)


def main():
    dry, wet = make_recordings()
    room = Room(TAPS)
    optimizer = torch.optim.Adam(room.parameters(), lr=2e-3)
    meter = Meter()
    while True:
        pick = torch.randint(0, len(dry), (BATCH,))
        loss = spectral_loss(room(dry[pick]), wet[pick])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if meter.count % 20 == 0:
            print(f"step {meter.count} loss {loss.item():.5f}")
        if not meter.step():
            break
    meter.report()
    print(f"direct sound {room.impulse()[0].item():.3f}")


if __name__ == "__main__":
    main()
