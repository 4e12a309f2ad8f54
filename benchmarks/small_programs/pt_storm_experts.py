"""Nowcast storm cells with a mixture of experts over radar patches."""
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
PATCHES, FEATURES, DIM, EXPERTS, HIDDEN, BATCH = 64, 48, 64, 8, 192, 6


class Meter:
    """Counts steps and says when the time budget is used up."""

    def __init__(self, seconds=40):
        self.seconds = float(os.environ.get("PROGRAM_SECONDS", seconds))
        self.start, self.count, self.mark = None, 0, None

    def step(self, n=1):
        self.last = time.perf_counter()
        self.count += n
        if self.start is None:
            self.start = self.last
        if self.mark is None and self.last - self.start > 0.1 * self.seconds:
            self.mark = (self.count, self.last)
        return self.last - self.start < self.seconds

    def report(self):
        count, since = self.mark
        print(f"STEPS {self.count - count} SECONDS {self.last - since:.3f}")

class Expert(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.up, self.down = nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, x):
        return self.down(F.silu(self.up(x)))


class SwitchLayer(nn.Module):
    """Sends each token to its best expert, scaled by the gate."""

    def __init__(self, dim, hidden, experts):
        super().__init__()
        self.gate = nn.Linear(dim, experts)
        self.experts = nn.ModuleList([Expert(dim, hidden) for _ in range(experts)])

    def forward(self, x):
        tokens = x.reshape(-1, x.shape[-1])
        probabilities = self.gate(tokens).softmax(-1)
        weight, choice = probabilities.max(-1)
        out = torch.zeros_like(tokens)
        for i, expert in enumerate(self.experts):
            mask = (choice == i).unsqueeze(-1)
            out = out + expert(tokens) * mask
        out = out * weight.unsqueeze(-1)
        load = F.one_hot(choice, len(self.experts)).float().mean(0)
        balance = len(self.experts) * (load * probabilities.mean(0)).sum()
        return out.view_as(x), balance


class StormModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(FEATURES, DIM)
        self.position = nn.Parameter(0.02 * torch.randn(PATCHES, DIM))
        self.norms = nn.ModuleList([nn.LayerNorm(DIM) for _ in range(4)])
        self.mixers = nn.ModuleList([nn.MultiheadAttention(DIM, 4, batch_first=True) for _ in range(2)])
        self.switches = nn.ModuleList([SwitchLayer(DIM, HIDDEN, EXPERTS) for _ in range(2)])
        self.head = nn.Linear(DIM, 1)

    def forward(self, patches):
        x = self.embed(patches) + self.position
        penalty = 0.0
        for i, (mixer, switch) in enumerate(zip(self.mixers, self.switches)):
            h = self.norms[2 * i](x)
            x = x + mixer(h, h, h, need_weights=False)[0]
            y, balance = switch(self.norms[2 * i + 1](x))
            x, penalty = x + y, penalty + balance
        return self.head(x).squeeze(-1), penalty


def make_radar(count=600):
    kind = torch.randint(0, EXPERTS, (count, PATCHES))
    patches = torch.randn(EXPERTS, FEATURES)[kind] + 0.5 * torch.randn(count, PATCHES, FEATURES)
    rain = torch.einsum("npf,npf->np", patches, torch.randn(EXPERTS, FEATURES)[kind]) / FEATURES ** 0.5
    return patches, rain


def main():
    patches, rain = make_radar()
    model = StormModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    meter = Meter()
    while True:
        pick = torch.randint(0, len(patches), (BATCH,))
        prediction, penalty = model(patches[pick])
        loss = F.mse_loss(prediction, rain[pick]) + 0.01 * penalty
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if meter.count % 20 == 0:
            print(f"step {meter.count} loss {loss.item():.5f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
