"""Measure how robust a traffic sign classifier is to projected gradient attacks."""
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
CLASSES, BATCH, EPSILON, STEP_SIZE, ITERATIONS = 6, 4, 10 / 255, 4 / 255, 3


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

class SignNet(nn.Module):
    """A small vision transformer over 4 x 4 patches."""

    def __init__(self, dim=128, depth=2):
        super().__init__()
        self.patch = nn.Linear(3 * 16, dim)
        self.position = nn.Parameter(0.02 * torch.randn(64, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 4 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(dim, CLASSES)

    def forward(self, x):
        patches = x.view(-1, 3, 8, 4, 8, 4).permute(0, 2, 4, 1, 3, 5).reshape(-1, 64, 48)
        return self.head(self.encoder(self.patch(patches) + self.position).mean(1))


def make_signs(count=512):
    labels = torch.randint(0, CLASSES, (count,))
    shapes = 0.2 + 0.6 * torch.rand(CLASSES, 3, 8, 8)
    images = F.interpolate(shapes[labels], size=32, mode="bilinear", align_corners=False)
    return (images + 0.06 * torch.randn_like(images)).clamp(0, 1), labels


def attack(model, images, labels):
    """Projected gradient ascent on the loss inside an infinity-norm ball."""
    noise = (torch.rand_like(images) * 2 - 1) * EPSILON
    adversarial = (images + noise).clamp(0, 1)
    for _ in range(ITERATIONS):
        adversarial = adversarial.detach().requires_grad_(True)
        loss = F.cross_entropy(model(adversarial), labels)
        model.zero_grad(set_to_none=True)
        loss.backward()
        with torch.no_grad():
            moved = adversarial + STEP_SIZE * adversarial.grad.sign()
            moved = torch.min(torch.max(moved, images - EPSILON), images + EPSILON)
            adversarial = moved.clamp(0, 1)
    return adversarial.detach()


def warm_up(model, images, labels, steps=24):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for i in range(steps):
        part = slice(i * 16 % len(images), i * 16 % len(images) + 16)
        loss = F.cross_entropy(model(images[part]), labels[part])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()


def main():
    images, labels = make_signs()
    model = SignNet()
    warm_up(model, images, labels)
    held = clean = seen = 0
    meter = Meter()
    while True:
        pick = torch.randint(0, len(images), (BATCH,))
        x, y = images[pick], labels[pick]
        x_adv = attack(model, x, y)
        with torch.no_grad():
            clean += (model(x).argmax(1) == y).sum().item()
            held += (model(x_adv).argmax(1) == y).sum().item()
        seen += BATCH
        if meter.count % 20 == 0:
            print(f"step {meter.count} clean {clean / seen:.3f} robust {held / seen:.3f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
