"""Scores photographs from a production line for surface defects with a residual network."""
import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

SMOKE = bool(os.environ.get("SMOKE"))
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32
PHOTOS, SIZE, CROP = (24, 40, 32) if SMOKE else (2000, 256, 224)
BATCH, WORKERS, WIDTH, CLASSES = (4, 1, 8, 5) if SMOKE else (192, 8, 64, 12)
MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32)
STD = np.array([0.229, 0.224, 0.225], dtype=np.float32)


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


class Line(Dataset):
    """The camera's ring buffer of decoded photographs, read again and again."""

    def __init__(self):
        rng = np.random.default_rng(0)
        self.photos = rng.integers(0, 256, (PHOTOS, SIZE, SIZE, 3), dtype=np.uint8)

    def __len__(self):
        return 10_000_000

    def __getitem__(self, i):
        edge = (SIZE - CROP) // 2
        photo = self.photos[i % PHOTOS, edge:edge + CROP, edge:edge + CROP]
        image = (photo.astype(np.float32) / 255 - MEAN) / STD
        return torch.from_numpy(image).permute(2, 0, 1).contiguous(), i


class Residual(nn.Module):
    def __init__(self, inner, outer, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1)
        self.skip = nn.Conv2d(inner, outer, 1, stride) if stride > 1 or inner != outer else nn.Identity()

    def forward(self, x):
        return F.relu(self.conv2(F.relu(self.conv1(x))) + self.skip(x))


class Inspector(nn.Module):
    """Batch norms are already folded into the convolutions."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, WIDTH, 7, 2, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        blocks, inner = [], WIDTH
        for stage in range(4):
            for block in range(2):
                outer = WIDTH * 2 ** stage
                blocks.append(Residual(inner, outer, 2 if stage and not block else 1))
                inner = outer
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inner, CLASSES)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


@torch.inference_mode()
def main():
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    loader = DataLoader(
        Line(),
        batch_size=BATCH,
        num_workers=WORKERS,
        pin_memory=DEVICE == "cuda",
        prefetch_factor=3,
        drop_last=True,
    )
    model = Inspector().to(DEVICE, DTYPE).to(memory_format=torch.channels_last).eval()

    meter = Meter()
    scored, batches = 0, 0
    worst = torch.zeros((), device=DEVICE)
    tally = torch.zeros(CLASSES, device=DEVICE)
    for images, number in loader:
        images = images.to(DEVICE, non_blocking=True)
        images = images.to(DTYPE, memory_format=torch.channels_last)
        scores = model(images).float().softmax(-1)
        tally += scores.sum(0)
        worst = torch.maximum(worst, scores[:, 0].max())
        scored += len(images)
        batches += 1
        if batches % 30 == 0:
            share = (tally / scored).tolist()
            print(f"{scored} photos up to {int(number[-1])}, worst {worst.item():.5f}, mean scores {share[0]:.5f} {share[1]:.5f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
