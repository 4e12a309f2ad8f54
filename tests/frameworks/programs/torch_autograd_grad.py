import statistics
import time

import torch
from torch import nn

net = nn.Sequential(nn.Linear(2, 128), nn.Tanh(), nn.Linear(128, 1))
parameters = list(net.parameters())
ends = []
for step in range(300):
    points = torch.rand(256, 2)
    loss = net(points).pow(2).mean()
    gradients = torch.autograd.grad(loss, parameters)
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients):
            parameter.sub_(gradient, alpha=0.01)
    ends.append(time.perf_counter())
print("own step:", statistics.median(b - a for a, b in zip(ends, ends[1:])) * 1e3, "ms")
