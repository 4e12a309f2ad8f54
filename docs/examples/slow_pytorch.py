"""Trains on images from storage with latency, and records five steps: train.py DIRECTORY."""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    """Images that take 3 ms each to read."""

    def __len__(self):
        return 100 * 16

    def __getitem__(self, index):
        time.sleep(0.003)
        return torch.full((3, 64, 64), index / 1600), index % 10


def main(directory):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 48, 3, stride=2),
        nn.ReLU(),
        nn.Conv2d(48, 48, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(48, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Images(), batch_size=16)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=torch.profiler.schedule(wait=4, warmup=2, active=10, repeat=1),
        on_trace_ready=torch.profiler.tensorboard_trace_handler(directory, use_gzip=True),
        record_shapes=True,
    ) as profiler:
        for step, (images, labels) in enumerate(loader):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            profiler.step()
            if step == 17:
                break


if __name__ == "__main__":
    main(sys.argv[1])
