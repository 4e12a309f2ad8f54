"""Bayesian logistic regression by Langevin sampling with many parallel chains."""
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

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--chains", type=int, default=64)
    parser.add_argument("--block", type=int, default=10)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=40)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(args.rows, 16)).astype(np.float32)
    y = (x @ rng.normal(size=16) + rng.logistic(size=args.rows) > 0).astype(np.float32)
    x, y = jnp.asarray(x), jnp.asarray(y)
    epsilon = 5e-4

    def score(w):
        return (y[:, None] - jax.nn.sigmoid(x @ w)).T @ x - w.T

    @jax.jit
    def block(w, total, key):
        def move(carry, k):
            w, total = carry
            w = w + epsilon * score(w).T + (2 * epsilon) ** 0.5 * jax.random.normal(k, w.shape)
            return (w, total + w), None
        (w, total), _ = jax.lax.scan(move, (w, total), jax.random.split(key, args.block))
        return w, total

    key = jax.random.key(0)
    w = jax.random.normal(key, (16, args.chains))
    total = jnp.zeros_like(w)
    meter = Meter(args.seconds)
    running, step = True, 0
    while running:
        w, total = block(w, total, jax.random.fold_in(key, step))
        step += 1
        if step % 100 == 0:
            mean = total / (step * args.block)
            print(f"block {step} spread between chains {float(mean.std(axis=1).mean()):.4f}")
        total.block_until_ready()
        running = meter.step()
    meter.report()


if __name__ == "__main__":
    main()
