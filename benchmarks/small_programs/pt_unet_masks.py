"""Tiny U-Net for segmenting blobs."""
import argparse
import os
import time

import torch
import torch.nn.functional as F
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

def block(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.ReLU(), nn.Conv2d(o, o, 3, padding=1), nn.ReLU())


class UNet(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.down1, self.down2 = block(1, width), block(width, 2 * width)
        self.middle = block(2 * width, 4 * width)
        self.up2, self.up1 = block(6 * width, 2 * width), block(3 * width, width)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.middle(F.max_pool2d(b, 2))
        b = self.up2(torch.cat([F.interpolate(c, scale_factor=2), b], 1))
        a = self.up1(torch.cat([F.interpolate(b, scale_factor=2), a], 1))
        return self.out(a)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--report", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=40)
    args = parser.parse_args()
    torch.manual_seed(0)
    field = F.interpolate(torch.randn(512, 1, 8, 8), size=64, mode="bilinear")
    mask = (field > 0.4).float()
    image = field + 0.3 * torch.randn_like(field)
    model = UNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    meter = Meter(args.seconds)
    running, step, total = True, 0, 0.0
    while running:
        for index in torch.randperm(len(image)).split(args.batch_size):
            optimizer.zero_grad()
            loss = F.binary_cross_entropy_with_logits(model(image[index]), mask[index])
            loss.backward()
            optimizer.step()
            total += loss.item()
            step += 1
            if step % args.report == 0:
                print(f"step {step} loss {total / args.report:.4f}")
                total = 0.0
            running = meter.step()
            if not running:
                break
    meter.report()


if __name__ == "__main__":
    main()
