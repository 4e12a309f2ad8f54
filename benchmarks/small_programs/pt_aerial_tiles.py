"""Run a roof-segmentation network over aerial scenes, tile by tile, and report roof area."""
import argparse
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


class RoofNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.middle = nn.ModuleList([nn.Conv2d(2 * width, 2 * width, 3, padding=1) for _ in range(3)])
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        skip = F.relu(self.stem(x))
        h = F.relu(self.down(skip))
        for layer in self.middle:
            h = F.relu(layer(h))
        return self.out(F.relu(self.up(h) + skip))


def make_scene(size, roofs, generator):
    scene = 0.4 + 0.05 * torch.randn(3, size, size, generator=generator)
    for _ in range(roofs):
        r, c = torch.randint(0, size - 24, (2,), generator=generator).tolist()
        h, w = torch.randint(8, 24, (2,), generator=generator).tolist()
        scene[:, r:r + h, c:c + w] = torch.rand(3, 1, 1, generator=generator) * 0.6 + 0.4
    return scene.clamp(0, 1)


def tiles_of(scene, size):
    for r in range(0, scene.shape[1], size):
        for c in range(0, scene.shape[2], size):
            yield r, c, scene[:, r:r + size, c:c + size]


class Predictor:
    def __init__(self, model, tile):
        self.model = model.eval().to(memory_format=torch.channels_last)
        self.tile = tile
        self.mean = torch.tensor([0.42, 0.42, 0.42]).view(3, 1, 1)
        self.std = torch.tensor([0.13, 0.13, 0.13]).view(3, 1, 1)

    @torch.inference_mode()
    def __call__(self, scene):
        scene = (scene - self.mean) / self.std
        result = torch.empty(scene.shape[1:])
        for r, c, tile in tiles_of(scene, self.tile):
            batch = tile.unsqueeze(0).contiguous(memory_format=torch.channels_last)
            logits = self.model(batch)
            result[r:r + self.tile, c:c + self.tile] = logits[0, 0].sigmoid()
        return result


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scene-size", type=int, default=288)
    parser.add_argument("--tile", type=int, default=96)
    parser.add_argument("--scenes", type=int, default=12)
    parser.add_argument("--threshold", type=float, default=0.5)
    return parser.parse_args()


def main():
    args = parse()
    torch.manual_seed(5)
    generator = torch.Generator().manual_seed(99)
    scenes = [make_scene(args.scene_size, 30, generator) for _ in range(args.scenes)]
    predict = Predictor(RoofNet(), args.tile)
    meter, number = Meter(), 0
    while True:
        probability = predict(scenes[number % len(scenes)])
        area = (probability > args.threshold).float().mean().item()
        if number < args.scenes:
            print(f"scene {number:03d} roof share {area:.3f}")
        number += 1
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
