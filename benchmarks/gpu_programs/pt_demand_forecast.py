"""Demand forecasting in the manner of ES-RNN: exponential smoothing with parameters per
series removes the level, a network forecasts the normalised future."""
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

SMOKE = bool(os.environ.get("SMOKE"))
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_float32_matmul_precision("high")

SERIES = 64 if SMOKE else 20000
HISTORY = 48 if SMOKE else 336
HORIZON = 6 if SMOKE else 28
WINDOW = 12 if SMOKE else 56
BATCH = 8 if SMOKE else 384
WIDTH, DEPTH = (32, 2) if SMOKE else (512, 2)
LOG_EVERY = 5 if SMOKE else 50


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

def make_series():
    length = HISTORY + HORIZON
    t = torch.arange(length, device=DEVICE)
    base = torch.empty(SERIES, 1, device=DEVICE).uniform_(20, 200)
    phase = torch.rand(SERIES, 1, device=DEVICE) * 7
    week = 1 + 0.3 * torch.sin(2 * torch.pi * (t + phase) / 7)
    drift = torch.exp(0.03 * torch.randn(SERIES, length, device=DEVICE).cumsum(1))
    return (base * week * drift * (1 + 0.1 * torch.randn(SERIES, length, device=DEVICE))).clamp(min=1)


class Smoothing(nn.Module):
    """Level of every series over time: l_t = a y_t + (1 - a) l_(t-1), with a per series."""

    def __init__(self):
        super().__init__()
        self.raw = nn.Embedding(SERIES, 1)
        nn.init.constant_(self.raw.weight, -1.0)

    def forward(self, y, ids):
        alpha = torch.sigmoid(self.raw(ids)).squeeze(1)
        level = y[:, 0]
        levels = [level]
        for t in range(1, y.shape[1]):
            level = alpha * y[:, t] + (1 - alpha) * level
            levels.append(level)
        return torch.stack(levels, dim=1)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.net = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x):
        return x + self.net(self.norm(x))


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.smoothing = Smoothing()
        self.network = nn.Sequential(
            nn.Linear(WINDOW, WIDTH), *(Residual() for _ in range(DEPTH)), nn.Linear(WIDTH, HORIZON))

    def forward(self, y, ids):
        """Forecasts from every cut-off that has a full window behind it and future ahead."""
        level = self.smoothing(y[:, :HISTORY], ids)[:, WINDOW - 1:]
        windows = y[:, :HISTORY].unfold(1, WINDOW, 1) / level.unsqueeze(2)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            forecast = self.network(torch.log(windows)).float()
        return forecast, level


def main():
    torch.manual_seed(0)
    series = make_series()
    model = Forecaster().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0, fused=DEVICE == "cuda")

    meter, step = Meter(), 0
    while True:
        ids = torch.randint(SERIES, (BATCH,), device=DEVICE)
        y = series[ids]
        forecast, level = model(y, ids)
        future = y[:, WINDOW:].unfold(1, HORIZON, 1) / level.unsqueeze(2)
        loss = F.smooth_l1_loss(forecast, torch.log(future))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % LOG_EVERY == 0:
            print(f"step {step} loss {loss.item():.4f}")
        step += 1
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
