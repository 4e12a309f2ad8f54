"""Point-cloud classification with edge convolutions over nearest neighbours in space."""
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

SMOKE = bool(os.environ.get("SMOKE"))
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_float32_matmul_precision("high")

CLASSES = 10
POINTS = 64 if SMOKE else 2048
BATCH = 4 if SMOKE else 32
NEIGHBOURS = 8 if SMOKE else 16
WIDTHS = (16, 16) if SMOKE else (64, 64, 64, 128)
CLOUDS = 40 if SMOKE else 2000
LOG_EVERY = 5 if SMOKE else 50


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

def make_clouds():
    """Noisy superquadric-like surfaces; the exponent tells the class."""
    label = torch.arange(CLOUDS, device=DEVICE) % CLASSES
    direction = F.normalize(torch.randn(CLOUDS, POINTS, 3, device=DEVICE), dim=-1)
    power = 0.6 + 0.3 * label.view(-1, 1, 1).float()
    radius = direction.abs().pow(power).sum(-1, keepdim=True).pow(-1 / power).clamp(max=3)
    cloud = direction * radius + 0.01 * torch.randn_like(direction)
    return cloud, label


@torch.no_grad()
def nearest(points, k):
    """Indices of the k nearest points of every point, [batch, points, k]."""
    distance = torch.cdist(points, points)
    return distance.topk(k, dim=-1, largest=False, sorted=False).indices


def gather_rows(x, index):
    """x [b, n, c], index [b, n, k] -> [b, n, k, c]"""
    b, n, c = x.shape
    offset = torch.arange(b, device=x.device).view(b, 1, 1) * n
    flat = (index + offset).flatten()
    return x.reshape(b * n, c).index_select(0, flat).view(b, n, -1, c)


class EdgeConv(nn.Module):
    """max over neighbours j of act(norm(A x_i + B (x_j - x_i)))"""

    def __init__(self, inp, out):
        super().__init__()
        self.own, self.other = nn.Linear(inp, out, bias=False), nn.Linear(inp, out, bias=False)
        self.norm = nn.LayerNorm(out)

    def forward(self, x, points):
        index = nearest(points, NEIGHBOURS)
        other = self.other(x)
        centre = self.own(x) - other
        edge = gather_rows(other, index) + centre.unsqueeze(2)
        return F.leaky_relu(self.norm(edge), 0.2).amax(2)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = (3,) + WIDTHS
        self.convs = nn.ModuleList(EdgeConv(a, b) for a, b in zip(sizes, sizes[1:]))
        self.merge = nn.Linear(sum(WIDTHS), 512)
        self.head = nn.Sequential(nn.Linear(1024, 256), nn.GELU(), nn.Linear(256, CLASSES))

    def forward(self, points):
        x, levels = points, []
        for conv in self.convs:
            x = conv(x, points)
            levels.append(x)
        x = F.leaky_relu(self.merge(torch.cat(levels, dim=-1)), 0.2)
        return self.head(torch.cat([x.amax(1), x.mean(1)], dim=-1))


def main():
    torch.manual_seed(0)
    clouds, labels = make_clouds()
    model = Classifier().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=DEVICE == "cuda")

    meter, step = Meter(), 0
    while True:
        pick = torch.randint(CLOUDS, (BATCH,), device=DEVICE)
        scale = torch.empty(BATCH, 1, 3, device=DEVICE).uniform_(0.8, 1.25)
        points = clouds[pick] * scale
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            logits = model(points)
        loss = F.cross_entropy(logits.float(), labels[pick], label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % LOG_EVERY == 0:
            print(f"step {step} loss {loss.item():.4f}")
        step += 1
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
