"""Lattice-Boltzmann (D2Q9) simulation of flow past a row of cylinders."""
import os
import time

import torch

SMOKE = bool(os.environ.get("SMOKE"))
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

HEIGHT, WIDTH = (32, 64) if SMOKE else (1024, 4096)
INNER = 4 if SMOKE else 10               # lattice steps per recorded frame
VISCOSITY, INFLOW = 0.02, 0.08
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

CX = (0, 1, 0, -1, 0, 1, -1, -1, 1)
CY = (0, 0, 1, 0, -1, 1, 1, -1, -1)
WEIGHT = (4 / 9,) + (1 / 9,) * 4 + (1 / 36,) * 4
OPPOSITE = (0, 3, 4, 1, 2, 7, 8, 5, 6)


class ChannelFlow:
    def __init__(self):
        self.omega = 1.0 / (3 * VISCOSITY + 0.5)
        shape = (9, 1, 1)
        self.cx = torch.tensor(CX, device=DEVICE, dtype=torch.float32).view(shape)
        self.cy = torch.tensor(CY, device=DEVICE, dtype=torch.float32).view(shape)
        self.weight = torch.tensor(WEIGHT, device=DEVICE).view(shape)
        y = torch.arange(HEIGHT, device=DEVICE)[:, None]
        x = torch.arange(WIDTH, device=DEVICE)[None, :]
        radius = HEIGHT // 12
        solid = torch.zeros(HEIGHT, WIDTH, dtype=torch.bool, device=DEVICE)
        for i in range(3):
            centre_y = HEIGHT * (i + 1) // 4
            solid |= (y - centre_y) ** 2 + (x - WIDTH // 5) ** 2 < radius ** 2
        solid[0], solid[-1] = True, True
        self.solid = solid

    def equilibrium(self, rho, ux, uy):
        along = 3 * (self.cx * ux + self.cy * uy)
        energy = 1.5 * (ux * ux + uy * uy)
        return self.weight * rho * (1 + along + 0.5 * along * along - energy)

    def moments(self, f):
        rho = f.sum(0)
        ux = (f * self.cx).sum(0) / rho
        uy = (f * self.cy).sum(0) / rho
        return rho, ux, uy

    def step(self, f):
        rho, ux, uy = self.moments(f)
        post = f + self.omega * (self.equilibrium(rho, ux, uy) - f)
        bounced = torch.stack([f[i] for i in OPPOSITE])
        post = torch.where(self.solid, bounced, post)
        moved = torch.stack([torch.roll(post[i], (CY[i], CX[i]), (0, 1)) for i in range(9)])
        inflow = self.equilibrium(torch.ones_like(rho[:, :1]), torch.full_like(ux[:, :1], INFLOW),
                                  torch.zeros_like(uy[:, :1]))
        return torch.cat([inflow, moved[:, :, 1:-1], moved[:, :, -2:-1]], dim=2)


@torch.no_grad()
def main():
    torch.manual_seed(0)
    flow = ChannelFlow()
    rho = torch.ones(HEIGHT, WIDTH, device=DEVICE)
    ux = INFLOW * (1 + 0.01 * torch.randn(HEIGHT, WIDTH, device=DEVICE))
    f = flow.equilibrium(rho, ux, torch.zeros_like(ux))
    advance = flow.step

    meter, frame = Meter(), 0
    probe = (slice(HEIGHT // 4, 3 * HEIGHT // 4), slice(WIDTH // 2, WIDTH // 2 + 4))
    history = []
    while True:
        for _ in range(INNER):
            f = advance(f)
        _, ux, uy = flow.moments(f[:, probe[0], probe[1]])
        history.append(torch.stack([ux.mean(), uy.square().mean().sqrt()]))
        if frame % LOG_EVERY == 0:
            mean, swing = torch.stack(history).mean(0).tolist()
            print(f"frame {frame} velocity {mean:.6f} swing {swing:.6f}")
            history.clear()
        frame += 1
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
