"""Diffusion model for small images: a residual U-Net predicts the noise; two averages of
the weights with different horizons are kept for sampling later."""
import copy
import math
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

SMOKE = bool(os.environ.get("SMOKE"))
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_float32_matmul_precision("high")

SIZE = 8 if SMOKE else 32
BATCH = 4 if SMOKE else 32
BASE = 8 if SMOKE else 64
STAGES = (1, 2) if SMOKE else (1, 2, 2, 4)
BLOCKS = 1 if SMOKE else 3
EMBED = 4 * BASE
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

class ResBlock(nn.Module):
    def __init__(self, inp, out):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, inp), nn.GroupNorm(8, out)
        self.conv1, self.conv2 = nn.Conv2d(inp, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)
        self.time = nn.Linear(EMBED, out)
        self.skip = nn.Conv2d(inp, out, 1) if inp != out else nn.Identity()

    def forward(self, x, t):
        h = self.conv1(F.silu(self.norm1(x))) + self.time(t)[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(BASE, EMBED), nn.SiLU(), nn.Linear(EMBED, EMBED), nn.SiLU())
        self.first = nn.Conv2d(3, BASE, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        width, skips = BASE, [BASE]
        for i, factor in enumerate(STAGES):
            for _ in range(BLOCKS):
                self.down.append(ResBlock(width, BASE * factor))
                width = BASE * factor
                skips.append(width)
            if i < len(STAGES) - 1:
                self.down.append(nn.Conv2d(width, width, 3, 2, 1))
                skips.append(width)
        self.middle = nn.ModuleList(ResBlock(width, width) for _ in range(2))
        for i, factor in reversed(list(enumerate(STAGES))):
            for _ in range(BLOCKS + 1):
                self.up.append(ResBlock(width + skips.pop(), BASE * factor))
                width = BASE * factor
            if i:
                self.up.append(nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(width, width, 3, padding=1)))
        self.last = nn.Sequential(nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, 3, 3, padding=1))

    def forward(self, x, t):
        angle = t[:, None] * 1000 * torch.exp(
            -math.log(10000) * torch.arange(BASE // 2, device=x.device) / (BASE // 2))
        t = self.embed(torch.cat([angle.sin(), angle.cos()], dim=1))
        x = self.first(x)
        skips = [x]
        for layer in self.down:
            x = layer(x, t) if isinstance(layer, ResBlock) else layer(x)
            skips.append(x)
        for layer in self.middle:
            x = layer(x, t)
        for layer in self.up:
            x = layer(torch.cat([x, skips.pop()], dim=1), t) if isinstance(layer, ResBlock) else layer(x)
        return self.last(x)


class Averages:
    """Exponential moving averages of a model's weights."""

    def __init__(self, model, decays=(0.999, 0.9999)):
        self.model, self.decays = model, decays
        self.copies = [copy.deepcopy(model).eval().requires_grad_(False) for _ in decays]

    @torch.no_grad()
    def update(self):
        for decay, average in zip(self.decays, self.copies):
            current = self.model.state_dict()
            for name, value in average.state_dict().items():
                value.copy_(decay * value + (1 - decay) * current[name])


def make_images(n):
    axis = torch.linspace(-1, 1, SIZE, device=DEVICE)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    centre, radius = torch.rand(n, 2, 1, 1, device=DEVICE) * 1.2 - 0.6, torch.rand(n, 1, 1, device=DEVICE) * 0.4 + 0.2
    blob = torch.sigmoid(20 * (radius - ((x - centre[:, 0]) ** 2 + (y - centre[:, 1]) ** 2).sqrt()))
    return (blob[:, None] * (torch.rand(n, 3, 1, 1, device=DEVICE) * 2)) - 1


def main():
    torch.manual_seed(0)
    images = make_images(64 if SMOKE else 20000)
    model = UNet().to(DEVICE)
    averages = Averages(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=DEVICE == "cuda")

    meter, step = Meter(), 0
    while True:
        clean = images[torch.randint(len(images), (BATCH,), device=DEVICE)]
        t = torch.rand(BATCH, device=DEVICE)
        noise = torch.randn_like(clean)
        a = torch.cos(t * math.pi / 2)[:, None, None, None]
        noisy = a * clean + (1 - a * a).sqrt() * noise
        loss = F.mse_loss(model(noisy, t), noise)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        averages.update()
        if step % LOG_EVERY == 0:
            print(f"step {step} loss {loss.item():.4f}")
        step += 1
        if not meter.step():
            break
    meter.report()
    if SMOKE:
        print("averages", [round(sum(p.abs().sum().item() for p in m.parameters()), 3) for m in averages.copies])


if __name__ == "__main__":
    main()
