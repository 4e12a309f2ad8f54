import statistics
import time

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(500, 128)
        self.rnn = nn.GRU(128, 256, batch_first=True)
        self.head = nn.Linear(256, 500)

    def forward(self, token, state):
        output, state = self.rnn(self.embed(token), state)
        return self.head(output[:, -1]), state


@torch.no_grad()
def generate(model, count, ends):
    token, state = torch.zeros(1, 1, dtype=torch.long), None
    for _ in range(count):
        logits, state = model(token, state)
        token = torch.multinomial(logits.softmax(-1), 1)
        ends.append(time.perf_counter())


ends = []
generate(Model().eval(), 600, ends)
print("own step:", statistics.median(b - a for a, b in zip(ends, ends[1:])) * 1e3, "ms")
