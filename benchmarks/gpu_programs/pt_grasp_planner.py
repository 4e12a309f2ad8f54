"""Grasp planning with the cross-entropy method: candidates are scored by looking up
learned scene features at the gripper's surface points."""
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

SMOKE = bool(os.environ.get("SMOKE"))
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_float32_matmul_precision("high")

SIDE = 16 if SMOKE else 160              # voxels per edge of the workspace
CHANNELS = 8 if SMOKE else 64
SCENES = 2
CANDIDATES = 64 if SMOKE else 32768
POINTS = 8 if SMOKE else 64              # points on the gripper's surface
ROUNDS = 4
ELITE = 8 if SMOKE else 512
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

class SceneEncoder(nn.Module):
    """Turns a signed-distance volume into a volume of features."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv3d(1, CHANNELS, 3, padding=1), nn.ReLU(),
            nn.Conv3d(CHANNELS, CHANNELS, 3, padding=1),
        )

    def forward(self, sdf):
        return self.net(sdf)


class GraspScorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.point = nn.Linear(CHANNELS, 64)
        self.head = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, features):
        x = F.relu(self.point(features))
        return self.head(x.view(-1, POINTS, 64).amax(1)).squeeze(-1)


class Scene:
    """Feature volume of one workspace, with lookups at metric coordinates in [0, 1]."""

    def __init__(self, encoder, sdf):
        volume = encoder(sdf)[0]
        self.features = volume.reshape(CHANNELS, -1)

    def lookup(self, points):
        voxel = (points * SIDE).long().clamp_(0, SIDE - 1)
        flat = (voxel[:, 0] * SIDE + voxel[:, 1]) * SIDE + voxel[:, 2]
        return self.features[:, flat].t()


def rotation(quaternion):
    w, x, y, z = F.normalize(quaternion, dim=-1).unbind(-1)
    return torch.stack([
        1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
        2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
        2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y),
    ], dim=-1).view(-1, 3, 3)


def plan(scene, scorer, gripper, generator):
    """Returns the best grasp (position, quaternion) and its score."""
    mean = torch.tensor([0.5, 0.5, 0.5, 1.0, 0.0, 0.0, 0.0], device=DEVICE)
    spread = torch.tensor([0.3, 0.3, 0.3, 0.7, 0.7, 0.7, 0.7], device=DEVICE)
    for _ in range(ROUNDS):
        grasp = mean + spread * torch.randn(CANDIDATES, 7, device=DEVICE, generator=generator)
        grasp[:, :3].clamp_(0.1, 0.9)
        points = gripper @ rotation(grasp[:, 3:]).transpose(1, 2) + grasp[:, None, :3]
        features = scene.lookup(points.reshape(-1, 3))
        with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=DEVICE == "cuda"):
            score = scorer(features).float()
        best, index = score.topk(ELITE)
        elite = grasp[index]
        mean, spread = elite.mean(0), elite.std(0) + 0.02
    return elite[0], best[0]


@torch.inference_mode()
def main():
    torch.manual_seed(0)
    encoder, scorer = SceneEncoder().to(DEVICE).eval(), GraspScorer().to(DEVICE).eval()
    axis = torch.linspace(0, 1, SIDE, device=DEVICE)
    grid = torch.stack(torch.meshgrid(axis, axis, axis, indexing="ij"))
    scenes = []
    for _ in range(SCENES):
        centre = torch.rand(6, 3, 1, 1, 1, device=DEVICE)
        sdf = (grid - centre).square().sum(1).sqrt().amin(0) - 0.12
        scenes.append(Scene(encoder, sdf[None, None]))
    gripper = (torch.rand(POINTS, 3, device=DEVICE) - 0.5) * 0.2
    generator = torch.Generator(DEVICE).manual_seed(1)

    meter, request = Meter(), 0
    while True:
        grasp, score = plan(scenes[request % SCENES], scorer, gripper, generator)
        pose = grasp.cpu()
        if request % LOG_EVERY == 0:
            print(f"request {request} score {score.item():.4f} at {[round(p, 4) for p in pose[:3].tolist()]}")
        request += 1
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
