"""Physics-informed network for the viscous Burgers equation  u_t + u u_x = nu u_xx."""
import math
import os
import time

import torch
from torch import nn


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


NU = 0.01 / math.pi


def grad(outputs, inputs):
    return torch.autograd.grad(outputs, inputs, torch.ones_like(outputs), create_graph=True)[0]


class Burgers:
    def __init__(self, width=48, depth=5, collocation=1500, boundary=128, lr=1e-3):
        layers, size = [], 2
        for _ in range(depth):
            layers += [nn.Linear(size, width), nn.Tanh()]
            size = width
        layers.append(nn.Linear(size, 1))
        self.net = nn.Sequential(*layers)
        for layer in self.net:
            if isinstance(layer, nn.Linear):
                nn.init.xavier_normal_(layer.weight)
                nn.init.zeros_(layer.bias)
        self.collocation, self.boundary = collocation, boundary
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=lr)

    def u(self, t, x):
        return self.net(torch.cat([t, x], dim=1))

    def u_t(self, t, x):
        return grad(self.u(t, x), t)

    def u_x(self, t, x):
        return grad(self.u(t, x), x)

    def u_xx(self, t, x):
        return grad(self.u_x(t, x), x)

    def residual(self, t, x):
        return self.u_t(t, x) + self.u(t, x) * self.u_x(t, x) - NU * self.u_xx(t, x)

    def sample(self):
        t = torch.rand(self.collocation, 1, requires_grad=True)
        x = (2 * torch.rand(self.collocation, 1) - 1).requires_grad_()
        x0 = 2 * torch.rand(self.boundary, 1) - 1
        tb = torch.rand(self.boundary, 1)
        side = torch.randint(0, 2, (self.boundary, 1)).float() * 2 - 1
        return t, x, x0, tb, side

    def loss(self):
        t, x, x0, tb, side = self.sample()
        physics = self.residual(t, x).square().mean()
        initial = (self.u(torch.zeros_like(x0), x0) + torch.sin(math.pi * x0)).square().mean()
        walls = self.u(tb, side).square().mean()
        return physics, initial, walls

    def fit(self):
        meter, step = Meter(), 0
        while True:
            physics, initial, walls = self.loss()
            total = physics + 10 * initial + 10 * walls
            self.optimizer.zero_grad()
            total.backward()
            self.optimizer.step()
            step += 1
            if step % 100 == 0:
                print(f"{step:5d} physics {physics.item():.2e} initial {initial.item():.2e} walls {walls.item():.2e}")
            if not meter.step():
                break
        meter.report()

    @torch.no_grad()
    def profile(self, when, points=11):
        x = torch.linspace(-1, 1, points).unsqueeze(1)
        return self.u(torch.full_like(x, when), x).squeeze(1)


if __name__ == "__main__":
    torch.manual_seed(42)
    problem = Burgers()
    problem.fit()
    print("u(0.5, x) =", [round(v, 3) for v in problem.profile(0.5).tolist()])
