"""Classify sonar echo images with a small residual network."""
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
CLASSES, BATCH, SIDE = 7, 16, 40


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

class Residual(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outside)
        self.skip = nn.Identity()
        if stride != 1 or inside != outside:
            self.skip = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(self.norm2(self.conv2(y)) + self.skip(x), inplace=True)


class SonarNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 32, 5, 2, 2)
        self.stages = nn.Sequential(Residual(32, 32, 1), Residual(32, 64, 2), Residual(64, 96, 2))
        self.head = nn.Linear(96, CLASSES)

    def forward(self, x):
        return self.head(self.stages(F.relu(self.stem(x))).mean((2, 3)))


def make_echoes(count=800):
    labels = torch.randint(0, CLASSES, (count,))
    shapes = torch.randn(CLASSES, 1, SIDE, SIDE)
    shapes = F.avg_pool2d(shapes, 5, 1, 2) * 4
    return shapes[labels] + 0.6 * torch.randn(count, 1, SIDE, SIDE), labels


def augment(images):
    """One random shift and flip for the whole batch, and speckle."""
    dx, dy, flip = torch.randint(-3, 4, (3,)).tolist()
    images = torch.roll(images, (dx, dy), (2, 3))
    if flip > 0:
        images = images.flip(3)
    return images * (1 + 0.1 * torch.randn_like(images))


def main():
    images, labels = make_echoes()
    model = SonarNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    meter = Meter()
    while True:
        pick = torch.randint(0, len(images), (BATCH,))
        loss = F.cross_entropy(model(augment(images[pick])), labels[pick])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if meter.count % 25 == 0:
            print(f"step {meter.count} loss {loss.item():.5f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
