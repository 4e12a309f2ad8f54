"""Adapt a pretrained chest-image backbone to a new hospital: only the classifier is trained."""
import argparse
import os
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


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
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.a = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.na = nn.BatchNorm2d(outputs)
        self.b = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.nb = nn.BatchNorm2d(outputs)
        self.short = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x):
        h = F.relu(self.na(self.a(x)))
        return F.relu(self.nb(self.b(h)) + self.short(x))


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 16, 5, 2, 2, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.stages = nn.Sequential(Residual(16, 32, 1), Residual(32, 48, 2), Residual(48, 64, 2))

    def forward(self, x):
        return self.stages(self.stem(x)).mean(dim=(2, 3))


class Classifier(nn.Module):
    def __init__(self, backbone, classes):
        super().__init__()
        self.backbone = backbone
        self.head = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, classes))

    def forward(self, x):
        return self.head(self.backbone(x))

    def train(self, mode=True):
        super().train(mode)
        self.backbone.eval()
        return self


def pretrained_backbone():
    """Stands for a checkpoint from the hub."""
    generator = torch.Generator().manual_seed(1234)
    backbone = Backbone()
    for p in backbone.parameters():
        if p.dim() > 1:
            p.data.normal_(0, (2 / p[0].numel()) ** 0.5, generator=generator)
    return backbone


def fake_images(count, size=64):
    axis = torch.linspace(-1, 1, size)
    base = torch.exp(-4 * ((axis.abs().view(1, 1, -1) - 0.45) ** 2 + 0.4 * axis.view(1, -1, 1) ** 2))
    labels = torch.randint(0, 3, (count,))
    images = base + 0.1 * torch.randn(count, size, size)
    spot = torch.rand(count, 2) - 0.5
    blob = torch.exp(-60 * ((axis.view(1, 1, -1) - spot[:, :1, None]) ** 2 + (axis.view(1, -1, 1) - spot[:, 1:, None]) ** 2))
    images += blob * labels.view(-1, 1, 1) * 0.5
    return images.unsqueeze(1), labels


def augment(images):
    if torch.rand(()) < 0.5:
        images = images.flip(-1)
    dr, dc = torch.randint(-3, 4, (2,)).tolist()
    return torch.roll(images, (dr, dc), (2, 3)) + 0.02 * torch.randn_like(images)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=2e-3)
    args = parser.parse_args()
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(*fake_images(800)), batch_size=args.batch, shuffle=True, drop_last=True)
    model = Classifier(pretrained_backbone(), 3)
    optimizer = torch.optim.AdamW(model.head.parameters(), lr=args.lr)
    meter, going, epoch = Meter(), True, 0
    model.train()
    while going:
        losses = []
        for images, labels in loader:
            logits = model(augment(images))
            loss = F.cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            going = meter.step()
            if not going:
                break
        epoch += 1
        print(f"epoch {epoch} loss {sum(losses) / len(losses):.4f}")
    meter.report()


if __name__ == "__main__":
    main()
