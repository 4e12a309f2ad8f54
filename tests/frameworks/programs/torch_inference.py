import statistics
import time

import torch
from torch import nn

model = nn.Sequential(
    nn.Conv2d(3, 32, 3),
    nn.ReLU(),
    nn.Conv2d(32, 32, 3),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(32, 10),
).eval()
ends, found = [], []
with torch.inference_mode():
    for _ in range(150):
        images = torch.randn(8, 3, 64, 64)
        found.append(model(images).argmax(1))
        ends.append(time.perf_counter())
print("own step:", statistics.median(b - a for a, b in zip(ends, ends[1:])) * 1e3, "ms")
