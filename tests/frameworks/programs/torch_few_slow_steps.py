import statistics
import time

import torch

model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(256, 4, batch_first=True), 2)
optimizer = torch.optim.AdamW(model.parameters())
ends = []
for step in range(14):
    optimizer.zero_grad(set_to_none=True)
    model(torch.randn(32, 128, 256)).mean().backward()
    optimizer.step()
    ends.append(time.perf_counter())
print("own step:", statistics.median(b - a for a, b in zip(ends, ends[1:])) * 1e3, "ms")
