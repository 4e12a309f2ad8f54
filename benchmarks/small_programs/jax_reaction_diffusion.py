"""Implicit diffusion with an explicit reaction term on an irregular 1-d mesh."""
import argparse
import os
import time

import jax
import jax.numpy as jnp
import numpy as np


class Meter:
    """Counts steps and says when the time budget is used up."""

    def __init__(self, seconds):
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

def diffusion_matrix(n, dt, seed=0):
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(0, 1, n))
    d2 = (x[:, None] - x[None, :]) ** 2
    w = np.exp(-d2 / 0.001)
    laplacian = np.diag(w.sum(1)) - w
    return jnp.asarray(np.eye(n) + dt * laplacian, jnp.float32), x


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cells", type=int, default=600)
    parser.add_argument("--species", type=int, default=128)
    parser.add_argument("--dt", type=float, default=0.02)
    parser.add_argument("--seconds", type=float, default=40)
    args = parser.parse_args()
    matrix, x = diffusion_matrix(args.cells, args.dt)
    rate = jnp.linspace(0.5, 2.0, args.species)
    dt = args.dt

    @jax.jit
    def advance(u, v):
        reaction = u * (1 - u) * (u - 0.2) - v
        recovery = 0.01 * rate * (u - 0.5 * v)
        u = jnp.linalg.solve(matrix, u + dt * rate * reaction)
        return u, v + dt * recovery

    u = jnp.asarray(np.where(np.abs(x - 0.5) < 0.1, 1.0, 0.0)[:, None] * np.ones(args.species), jnp.float32)
    v = jnp.zeros_like(u)
    meter = Meter(args.seconds)
    running, step = True, 0
    while running:
        u, v = advance(u, v)
        step += 1
        if step % 500 == 0:
            print(f"step {step} mean {float(u.mean()):.4f} max {float(u.max()):.4f}")
        u.block_until_ready()
        running = meter.step()
    meter.report()


if __name__ == "__main__":
    main()
