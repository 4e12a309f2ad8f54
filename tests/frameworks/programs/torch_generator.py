import statistics
import time

import torch


def batches(count):
    for _ in range(count):
        yield torch.randint(0, 1000, (16, 32))


def steps(model, optimizer, data):
    for tokens in data:
        loss = model(tokens).logsumexp(-1).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss


model = torch.nn.Sequential(torch.nn.Embedding(1000, 128), torch.nn.Linear(128, 1000))
optimizer = torch.optim.Adagrad(model.parameters(), 0.01)
ends = []
for loss in steps(model, optimizer, batches(150)):
    ends.append(time.perf_counter())
print("own step:", statistics.median(b - a for a, b in zip(ends, ends[1:])) * 1e3, "ms")
