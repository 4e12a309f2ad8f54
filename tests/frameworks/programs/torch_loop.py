import statistics
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
loader = DataLoader(
    TensorDataset(torch.randn(6400, 256), torch.randint(0, 10, (6400,))), 32, shuffle=True
)
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
ends = []
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        ends.append(time.perf_counter())
print("own step:", statistics.median(b - a for a, b in zip(ends, ends[1:])) * 1e3, "ms")
