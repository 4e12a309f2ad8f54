"""Renders an orbiting view of a neural signed distance field by sphere tracing."""
import math
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

SMOKE = bool(os.environ.get("SMOKE"))
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.float16 if DEVICE == "cuda" else torch.float32
WIDE, HIGH, HIDDEN, OCTAVES = (32, 24, 16, 4) if SMOKE else (800, 600, 256, 6)
MARCH, FAR, NEAR_ENOUGH, RELAX = 48, 6.0, 1e-3, 0.7


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


class Shape(nn.Module):
    """A ball with a learned relief on it: distance to the ball plus a small network."""

    def __init__(self):
        super().__init__()
        self.register_buffer("octaves", 2.0 ** torch.arange(OCTAVES))
        sizes = [3 + 6 * OCTAVES] + [HIDDEN] * 4
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))
        self.last = nn.Linear(HIDDEN, 1)
        for layer in self.hidden:
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")

    def forward(self, points):
        waves = (points[:, None, :] * self.octaves[:, None]).flatten(1)
        x = torch.cat((points, waves.sin(), waves.cos()), dim=1).to(DTYPE)
        for layer in self.hidden:
            x = F.relu(layer(x), inplace=True)
        relief = torch.tanh(self.last(x).float().squeeze(1))
        return points.norm(dim=1) - 0.9 + 0.06 * relief


def camera(angle):
    """Origin and directions of one ray per pixel, looking at the centre from a circle around it."""
    origin = torch.tensor([3 * math.cos(angle), 0.8, 3 * math.sin(angle)], device=DEVICE)
    forward = F.normalize(-origin, dim=0)
    right = F.normalize(torch.linalg.cross(forward, torch.tensor([0.0, 1.0, 0.0], device=DEVICE)), dim=0)
    up = torch.linalg.cross(right, forward)
    x = torch.linspace(-1, 1, WIDE, device=DEVICE) * 0.55 * WIDE / HIGH
    y = torch.linspace(1, -1, HIGH, device=DEVICE) * 0.55
    directions = forward + x[None, :, None] * right + y[:, None, None] * up
    return origin, F.normalize(directions.view(-1, 3), dim=1)


def march(shape, origin, directions):
    """Distance along each ray at which it meets the surface (or leaves the scene)."""
    depth = torch.full((len(directions),), 1.5, device=DEVICE)
    moving = torch.ones_like(depth, dtype=torch.bool)
    for _ in range(MARCH):
        distance = shape(origin + depth[:, None] * directions)
        moving &= (distance > NEAR_ENOUGH) & (depth < FAR)
        depth = torch.where(moving, depth + RELAX * distance, depth)
    return depth


def shade(shape, origin, directions, depth, light):
    """Lambert shading with normals from four taps around each hit."""
    hit = (depth < FAR).nonzero().squeeze(1)
    points = origin + depth[hit, None] * directions[hit]
    corners = torch.tensor([[1, -1, -1], [-1, -1, 1], [-1, 1, -1], [1, 1, 1.0]], device=DEVICE)
    normals = torch.zeros_like(points)
    for corner in corners:
        normals += shape(points + 2e-3 * corner)[:, None] * corner
    normals = F.normalize(normals, dim=1)
    image = torch.full((len(directions),), 0.1, device=DEVICE)
    image[hit] = 0.15 + 0.85 * (normals @ light).clamp(min=0)
    return image.view(HIGH, WIDE)


@torch.inference_mode()
def main():
    torch.manual_seed(0)
    shape = Shape().to(DEVICE)
    shape.hidden.to(DTYPE)
    shape.last.to(DTYPE)
    light = F.normalize(torch.tensor([0.4, 0.8, 0.45], device=DEVICE), dim=0)
    film = torch.empty((HIGH, WIDE), dtype=torch.uint8, pin_memory=DEVICE == "cuda")

    meter = Meter()
    frame = 0
    while True:
        origin, directions = camera(2 * math.pi * frame / 240)
        depth = march(shape, origin, directions)
        image = shade(shape, origin, directions, depth, light)
        film.copy_((image * 255).to(torch.uint8))
        frame += 1
        if frame % 20 == 0:
            print(f"frame {frame}: mean brightness {film.float().mean().item():.4f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
