"""Calibrates the Heston model to an option surface by gradient descent through a quasi-Monte Carlo simulation."""
import math
import os
import time

import torch

SMOKE = bool(os.environ.get("SMOKE"))
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PATHS, STEPS = (512, 8) if SMOKE else (65536, 48)
STRIKES = 21
YEARS, RATE = 1.0, 0.02


def wait():
    torch.cuda.is_available() and torch.cuda.synchronize()


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
        if self.mark is None and self.last - self.start > 0.3 * self.seconds:
            wait()
            self.mark = (self.count, time.perf_counter())
        return self.last - self.start < self.seconds

    def report(self):
        wait()
        count, since = self.mark
        print(f"STEPS {self.count - count} SECONDS {time.perf_counter() - since:.3f}")


def normals():
    """Standard normal draws (steps, 2, paths); the same points for each evaluation keep the objective smooth."""
    engine = torch.quasirandom.SobolEngine(2 * STEPS, scramble=True, seed=11)
    uniform = engine.draw(PATHS).clamp(1e-6, 1 - 1e-6)
    draws = math.sqrt(2) * torch.erfinv(2 * uniform - 1)
    return draws.t().reshape(STEPS, 2, PATHS).to(DEVICE)


def unpack(raw):
    """Unconstrained numbers to (mean reversion, long variance, vol of vol, correlation, variance now)."""
    soft = torch.nn.functional.softplus(raw)
    return soft[0], soft[1], soft[2], torch.tanh(raw[3]), soft[4]


def simulate(raw):
    """Log prices at the quarterly maturities."""
    speed, level, volvol, rho, start = unpack(raw)
    step = YEARS / STEPS
    root = math.sqrt(step)
    across = torch.sqrt(1 - rho * rho)
    price = torch.zeros(PATHS, device=DEVICE)
    variance = start.expand(PATHS)
    snapshots = []
    for i, (z1, z2) in enumerate(normals()):
        positive = variance.clamp(min=1e-5)
        shock = positive.sqrt() * root
        price = price + (RATE - 0.5 * positive) * step + shock * z1
        variance = variance + speed * (level - positive) * step + volvol * shock * (rho * z1 + across * z2)
        if (i + 1) % (STEPS // 4) == 0:
            snapshots.append(price)
    return torch.stack(snapshots)


def surface(raw, strikes):
    """Discounted call prices, one row per maturity."""
    terminal = simulate(raw).exp()
    years = YEARS * torch.arange(1, 5, device=DEVICE) / 4
    payoff = (terminal[:, None] - strikes[:, None]).clamp(min=0).mean(-1)
    return torch.exp(-RATE * years)[:, None] * payoff


def inverse_softplus(x):
    return math.log(math.expm1(x))


def raw_parameters(speed, level, volvol, rho, start):
    values = [inverse_softplus(v) for v in (speed, level, volvol)]
    return torch.tensor(values + [math.atanh(rho), inverse_softplus(start)], device=DEVICE)


def main():
    torch.manual_seed(0)
    strikes = torch.linspace(0.7, 1.3, STRIKES, device=DEVICE)
    with torch.no_grad():
        market = surface(raw_parameters(1.8, 0.05, 0.45, -0.65, 0.035), strikes)
        market *= 1 + 0.002 * torch.randn(market.shape).to(DEVICE)
    weights = 1 / (market + 0.01)
    weights /= weights.sum()

    raw = raw_parameters(1.0, 0.09, 0.8, -0.2, 0.08).requires_grad_()
    optimizer = torch.optim.Adam([raw], lr=0.02)
    meter = Meter()
    step = 0
    while True:
        optimizer.zero_grad()
        loss = (weights * (surface(raw, strikes) - market).square()).sum()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 20 == 0:
            names = ("speed", "level", "volvol", "rho", "start")
            values = ", ".join(f"{n} {v.item():.4f}" for n, v in zip(names, unpack(raw.detach())))
            print(f"step {step}: error {math.sqrt(loss.item()):.6f}, {values}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
