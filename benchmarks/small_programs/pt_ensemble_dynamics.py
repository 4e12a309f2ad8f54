"""Train a bootstrapped ensemble of dynamics models for a planar reacher arm."""
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
MEMBERS, STATE, ACTION, HIDDEN, BATCH = 16, 10, 2, 32, 32


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

class Member(nn.Module):
    """Predicts the change of state as a Gaussian."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(STATE + ACTION, HIDDEN)
        self.second = nn.Linear(HIDDEN, HIDDEN)
        self.third = nn.Linear(HIDDEN, 2 * STATE)

    def forward(self, x):
        x = F.silu(self.first(x))
        x = F.silu(self.second(x))
        mean, log_variance = self.third(x).chunk(2, dim=-1)
        return mean, log_variance.clamp(-8, 2)


class Ensemble(nn.Module):
    def __init__(self, members):
        super().__init__()
        self.members = nn.ModuleList([Member() for _ in range(members)])

    def forward(self, x):
        means, log_variances = [], []
        for member, part in zip(self.members, x):
            mean, log_variance = member(part)
            means.append(mean)
            log_variances.append(log_variance)
        return torch.stack(means), torch.stack(log_variances)


def gaussian_nll(mean, log_variance, target):
    error = (mean - target) ** 2
    return 0.5 * (error * torch.exp(-log_variance) + log_variance).mean(dim=(1, 2)).sum()


def make_transitions(count=20_000):
    state, action = torch.randn(count, STATE), torch.rand(count, ACTION) * 2 - 1
    drift = torch.randn(STATE, STATE) * 0.1
    push = torch.randn(ACTION, STATE) * 0.3
    change = torch.tanh(state @ drift) + action @ push + 0.05 * torch.randn(count, STATE)
    return torch.cat([state, action], dim=-1), change


def main():
    inputs, changes = make_transitions()
    bootstrap = torch.randint(0, len(inputs), (MEMBERS, len(inputs)))
    model = Ensemble(MEMBERS)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    meter = Meter()
    while True:
        pick = bootstrap[:, torch.randint(0, len(inputs), (BATCH,))]
        mean, log_variance = model(inputs[pick])
        loss = gaussian_nll(mean, log_variance, changes[pick])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if meter.count % 50 == 0:
            print(f"step {meter.count} loss {loss.item() / MEMBERS:.5f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
