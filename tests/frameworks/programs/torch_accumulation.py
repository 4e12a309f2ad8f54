import statistics
import time

import torch

model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU(), torch.nn.Linear(512, 512))
optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
ends = []
for step in range(80):
    for micro in range(4):
        (model(torch.randn(32, 512)).square().mean() / 4).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    ends.append(time.perf_counter())
print("own step:", statistics.median(b - a for a, b in zip(ends, ends[1:])) * 1e3, "ms")
