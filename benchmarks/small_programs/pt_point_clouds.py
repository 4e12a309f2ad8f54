"""Classify small synthetic point clouds with a two-layer dynamic graph network."""
import math
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


CLASSES = ("sphere", "cube", "torus", "helix")
POINTS, NEIGHBOURS, BATCH = 384, 12, 8


def sample_shape(kind, n):
    if kind == "sphere":
        p = F.normalize(torch.randn(n, 3), dim=1)
    elif kind == "cube":
        p = torch.rand(n, 3) * 2 - 1
        side = torch.randint(0, 3, (n,))
        p[torch.arange(n), side] = torch.sign(p[torch.arange(n), side])
    elif kind == "torus":
        a, b = 2 * math.pi * torch.rand(n), 2 * math.pi * torch.rand(n)
        ring = 1 + 0.35 * torch.cos(b)
        p = torch.stack([ring * torch.cos(a), ring * torch.sin(a), 0.35 * torch.sin(b)], 1)
    else:
        t = 4 * math.pi * torch.rand(n)
        p = torch.stack([torch.cos(t), torch.sin(t), t / (2 * math.pi) - 1], 1)
    q, _ = torch.linalg.qr(torch.randn(3, 3))
    return p @ q + 0.03 * torch.randn(n, 3)


def build_dataset(count):
    labels = torch.randint(0, len(CLASSES), (count,))
    clouds = torch.stack([sample_shape(CLASSES[k], POINTS) for k in labels.tolist()])
    return clouds, labels


def neighbour_index(features, k):
    """Indices of the k nearest points in feature space, the point itself left out."""
    with torch.no_grad():
        distance = torch.cdist(features, features)
        order = distance.argsort(dim=-1)
        return order[..., 1:k + 1]


class EdgeLayer(nn.Module):
    def __init__(self, inputs, outputs, k):
        super().__init__()
        self.centre = nn.Linear(inputs, outputs)
        self.other = nn.Linear(inputs, outputs, bias=False)
        self.k = k

    def forward(self, x):
        b, n, _ = x.shape
        index = neighbour_index(x, self.k)
        values = self.other(x)
        flat = index + torch.arange(b).view(b, 1, 1) * n
        near = values.reshape(b * n, -1).index_select(0, flat.reshape(-1))
        near = near.view(b, n, self.k, -1).amax(dim=2)
        return F.leaky_relu(self.centre(x) + near, 0.2)


class CloudNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = EdgeLayer(3, 32, NEIGHBOURS)
        self.second = EdgeLayer(32, 48, NEIGHBOURS)
        self.lift = nn.Linear(80, 160)
        self.head = nn.Sequential(nn.Linear(320, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, len(CLASSES)))

    def forward(self, x):
        a = self.first(x)
        b = self.second(a)
        h = F.leaky_relu(self.lift(torch.cat([a, b], -1)), 0.2)
        return self.head(torch.cat([h.amax(1), h.mean(1)], -1))


def main():
    torch.manual_seed(7)
    clouds, labels = build_dataset(400)
    net = CloudNet()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=1e-4)
    meter, going, epoch = Meter(), True, 0
    while going:
        seen, right = 0, 0
        for pick in torch.randperm(len(clouds)).split(BATCH):
            x = clouds[pick] * (0.8 + 0.4 * torch.rand(len(pick), 1, 1))
            y = labels[pick]
            out = net(x)
            loss = F.cross_entropy(out, y, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right += (out.argmax(1) == y).sum().item()
            seen += len(y)
            going = meter.step()
            if not going:
                break
        epoch += 1
        print(f"epoch {epoch} accuracy {right / seen:.3f}")
    meter.report()


if __name__ == "__main__":
    main()
