import statistics
import time

import torch
from torch import nn

G = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 784), nn.Tanh())
D = nn.Sequential(nn.Linear(784, 256), nn.LeakyReLU(0.2), nn.Linear(256, 1))
optimizer_d = torch.optim.Adam(D.parameters(), 2e-4)
optimizer_g = torch.optim.Adam(G.parameters(), 2e-4)
criterion = nn.BCEWithLogitsLoss()
ends = []
for step in range(200):
    real, noise = torch.randn(64, 784), torch.randn(64, 64)
    D.zero_grad()
    fake = G(noise)
    loss_d = criterion(D(real), torch.ones(64, 1)) + criterion(D(fake.detach()), torch.zeros(64, 1))
    loss_d.backward()
    optimizer_d.step()
    G.zero_grad()
    criterion(D(fake), torch.ones(64, 1)).backward()
    optimizer_g.step()
    ends.append(time.perf_counter())
print("own step:", statistics.median(b - a for a, b in zip(ends, ends[1:])) * 1e3, "ms")
