"""Forecast sea ice concentration a week ahead with a small residual network on grids."""
import argparse
import logging
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

log = logging.getLogger("sea_ice")


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


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        return x + self.second(F.relu(self.first(F.relu(x))))


class IceNet(nn.Module):
    def __init__(self, days, width, depth):
        super().__init__()
        self.stem = nn.Conv2d(days, width, 3, padding=1)
        self.blocks = nn.Sequential(*[Residual(width) for _ in range(depth)])
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        return torch.sigmoid(self.out(self.blocks(self.stem(x)))).squeeze(1)


class Trainer:
    def __init__(self, model, lr):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
        self.count = 0

    def step(self, past, future):
        forecast = self.model(past)
        loss = F.binary_cross_entropy(forecast, future)
        self.optimizer.zero_grad()
        loss.backward()
        for name, parameter in self.model.named_parameters():
            log.debug(f"step {self.count} {name} gradient {parameter.grad}")
        self.optimizer.step()
        self.count += 1
        return loss


def make_season(days, side, generator):
    """A smooth field that drifts and grows."""
    y, x = torch.meshgrid(torch.linspace(0, 3, side), torch.linspace(0, 3, side), indexing="ij")
    day = torch.arange(days)[:, None, None] / 20
    waves = 0
    for _ in range(6):
        a, b, c, d = torch.randn(4, generator=generator)
        waves = waves + torch.sin(2 * a * x + 2 * b * y + c * day + 6 * d)
    return torch.sigmoid(3 * (0.5 * waves + y - 1.5 + torch.sin(day / 3)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--log-level", default="INFO")
    parser.add_argument("--days", type=int, default=5)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.01)
    args = parser.parse_args()
    logging.basicConfig(level=args.log_level, format="%(asctime)s %(name)s %(message)s")
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    season = make_season(400, 40, generator)
    trainer = Trainer(IceNet(args.days, args.width, args.depth), args.lr)
    meter = Meter()
    while True:
        day = torch.randint(args.days, len(season) - 7, (args.batch_size,), generator=generator)
        past = torch.stack([season[d - args.days:d] for d in day.tolist()])
        loss = trainer.step(past, season[day + 6])
        if meter.count % 50 == 0:
            log.info("step %d loss %.4f", meter.count, loss.item())
            print(f"step {meter.count} loss {loss.item():.4f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
