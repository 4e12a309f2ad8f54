import statistics
import time

import torch

w1 = torch.randn(128, 256, requires_grad=True)
w2 = torch.randn(256, 1, requires_grad=True)
x, y = torch.randn(512, 128), torch.randn(512, 1)
ends = []
for step in range(300):
    loss = ((x @ w1).tanh() @ w2 - y).pow(2).mean()
    loss.backward()
    with torch.no_grad():
        for w in (w1, w2):
            w -= 1e-4 * w.grad
            w.grad = None
    ends.append(time.perf_counter())
print("own step:", statistics.median(b - a for a, b in zip(ends, ends[1:])) * 1e3, "ms")
