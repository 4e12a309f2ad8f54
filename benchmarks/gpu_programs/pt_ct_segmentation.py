"""Organ segmentation in CT volumes: a 3D U-Net trained on random patches read from disk."""
import os
import tempfile
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

SMOKE = bool(os.environ.get("SMOKE"))
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

VOLUMES = 2 if SMOKE else 3
SHAPE = (24, 32, 32) if SMOKE else (192, 384, 384)
PATCH = 16 if SMOKE else 96
BATCH = 2
WORKERS = 1 if SMOKE else 6
BASE = 4 if SMOKE else 32
CLASSES = 3
LOW, HIGH, MEAN, STD = -200.0, 400.0, 60.0, 140.0
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

def write_volumes(folder):
    """Noise with ellipsoids of two densities; stored as scanners do, int16 and uint8."""
    rng = np.random.default_rng(0)
    z, y, x = np.ogrid[[slice(0, n) for n in SHAPE]]
    noise = rng.integers(-300, 300, SHAPE, dtype=np.int16)
    for i in range(VOLUMES):
        mask = np.zeros(SHAPE, np.uint8)
        for label in (1, 2):
            c = [rng.uniform(0.3, 0.7) * n for n in SHAPE]
            r = [rng.uniform(0.1, 0.25) * n for n in SHAPE]
            inside = ((z - c[0]) / r[0]) ** 2 + ((y - c[1]) / r[1]) ** 2 + ((x - c[2]) / r[2]) ** 2 < 1
            mask[inside] = label
        np.save(f"{folder}/ct{i}.npy", noise + mask.astype(np.int16) * 150)
        np.save(f"{folder}/mask{i}.npy", mask)


class Patches(Dataset):
    def __init__(self, folder):
        self.folder = folder

    def __len__(self):
        return 1_000_000

    def __getitem__(self, i):
        rng = np.random.default_rng(i)
        n = rng.integers(VOLUMES)
        image = np.load(f"{self.folder}/ct{n}.npy").astype(np.float32)
        mask = np.load(f"{self.folder}/mask{n}.npy")
        np.clip(image, LOW, HIGH, out=image)
        image -= MEAN
        image /= STD
        corner = [rng.integers(s - PATCH + 1) for s in SHAPE]
        window = tuple(slice(c, c + PATCH) for c in corner)
        image, mask = image[window], mask[window]
        for axis in range(3):
            if rng.random() < 0.5:
                image, mask = np.flip(image, axis), np.flip(mask, axis)
        return torch.from_numpy(image.copy()).unsqueeze(0), torch.from_numpy(mask.copy())


def conv(inp, out, stride=1):
    return nn.Sequential(
        nn.Conv3d(inp, out, 3, stride, 1, bias=False), nn.BatchNorm3d(out), nn.ReLU(inplace=True))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = [BASE, 2 * BASE, 4 * BASE]
        self.stem = conv(1, BASE)
        self.down = nn.ModuleList(
            nn.Sequential(conv(a, b, 2), conv(b, b)) for a, b in zip(sizes, sizes[1:] + [4 * BASE]))
        self.up = nn.ModuleList(
            conv(a + b, b) for a, b in zip([4 * BASE] + sizes[:0:-1], sizes[::-1]))
        self.head = nn.Conv3d(BASE, CLASSES, 1)

    def forward(self, x):
        levels = [self.stem(x)]
        for down in self.down:
            levels.append(down(levels[-1]))
        x = levels.pop()
        for up in self.up:
            x = F.interpolate(x, scale_factor=2, mode="nearest")
            x = up(torch.cat([x, levels.pop()], dim=1))
        return self.head(x)


def dice_ce(logits, mask):
    ce = F.cross_entropy(logits, mask)
    p = logits.softmax(1)
    hot = F.one_hot(mask, CLASSES).movedim(-1, 1)
    overlap = (p * hot).sum((0, 2, 3, 4))
    total = p.sum((0, 2, 3, 4)) + hot.sum((0, 2, 3, 4))
    return ce + 1 - (2 * overlap / total.clamp(min=1)).mean()


def main():
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        write_volumes(folder)
        loader = DataLoader(Patches(folder), BATCH, num_workers=WORKERS, pin_memory=DEVICE == "cuda",
                            prefetch_factor=4)
        model = UNet().to(DEVICE, memory_format=torch.channels_last_3d)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=DEVICE == "cuda")
        meter = Meter()
        for step, (image, mask) in enumerate(loader):
            image = image.to(DEVICE, non_blocking=True)
            mask = mask.to(DEVICE, non_blocking=True).long()
            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                logits = model(image)
            loss = dice_ce(logits.float(), mask)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if step % LOG_EVERY == 0:
                print(f"step {step} loss {loss.item():.4f}")
            if not meter.step():
                break
        meter.report()


if __name__ == "__main__":
    main()
