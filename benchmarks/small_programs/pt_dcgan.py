"""DCGAN on small synthetic grey images."""
import argparse
import os
import time

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

def make_images(count, size=32):
    axis = torch.linspace(-1, 1, size)
    centre = torch.rand(count, 2, 1, 1) - 0.5
    radius = 0.2 + 0.3 * torch.rand(count, 1, 1)
    distance = ((axis[None, :, None] - centre[:, 0]) ** 2 + (axis[None, None, :] - centre[:, 1]) ** 2).sqrt()
    return ((distance < radius).float() * 2 - 1).unsqueeze(1)


def generator(z, width):
    return nn.Sequential(
        nn.ConvTranspose2d(z, 4 * width, 4), nn.BatchNorm2d(4 * width), nn.ReLU(),
        nn.ConvTranspose2d(4 * width, 2 * width, 4, 2, 1), nn.BatchNorm2d(2 * width), nn.ReLU(),
        nn.ConvTranspose2d(2 * width, width, 4, 2, 1), nn.BatchNorm2d(width), nn.ReLU(),
        nn.ConvTranspose2d(width, 1, 4, 2, 1), nn.Tanh(),
    )


def discriminator(width):
    return nn.Sequential(
        nn.Conv2d(1, width, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Conv2d(width, 2 * width, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Conv2d(2 * width, 4 * width, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Conv2d(4 * width, 1, 4), nn.Flatten(0),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--latent", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=40)
    args = parser.parse_args()
    torch.manual_seed(0)
    images = make_images(4096)
    g, d = generator(args.latent, 48), discriminator(16)
    g_opt = torch.optim.Adam(g.parameters(), lr=2e-4, betas=(0.5, 0.999))
    d_opt = torch.optim.Adam(d.parameters(), lr=2e-4, betas=(0.5, 0.999))
    bce = nn.BCEWithLogitsLoss()
    ones, zeros = torch.ones(args.batch_size), torch.zeros(args.batch_size)
    meter = Meter(args.seconds)
    running, step = True, 0
    while running:
        for index in torch.randperm(len(images)).split(args.batch_size):
            real = images[index]
            fake = g(torch.randn(args.batch_size, args.latent, 1, 1))

            d_opt.zero_grad()
            d_loss = bce(d(real), ones) + bce(d(fake), zeros)
            d_loss.backward(retain_graph=True)
            d_opt.step()

            g_opt.zero_grad()
            d.requires_grad_(False)
            g_loss = bce(d(fake), ones)
            g_loss.backward()
            d.requires_grad_(True)
            g_opt.step()

            step += 1
            if step % 100 == 0:
                print(f"step {step} d {d_loss.item():.3f} g {g_loss.item():.3f}")
            running = meter.step()
            if not running:
                break
    meter.report()


if __name__ == "__main__":
    main()
