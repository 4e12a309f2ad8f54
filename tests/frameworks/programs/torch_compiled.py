import statistics
import time

import torch

model = torch.compile(
    torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8)),
    backend="aot_eager",
)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
ends = []
for step in range(200):
    optimizer.zero_grad()
    model(torch.randn(64, 256)).square().mean().backward()
    optimizer.step()
    ends.append(time.perf_counter())
print("own step:", statistics.median(b - a for a, b in zip(ends, ends[1:])) * 1e3, "ms")
