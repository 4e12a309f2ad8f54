"""Mini-batch k-means on embedding vectors."""
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

def squared_distances(x, c):
    return jnp.sum((x[:, None, :] - c[None, :, :]) ** 2, axis=-1)


@jax.jit
def update(centres, counts, x):
    d = squared_distances(x, centres)
    nearest = jnp.argmin(d, axis=1)
    n = jax.ops.segment_sum(jnp.ones(len(x)), nearest, len(centres))
    total = jax.ops.segment_sum(x, nearest, len(centres))
    counts = 0.98 * counts + n
    centres = centres + (total - n[:, None] * centres) / jnp.maximum(counts, 1.0)[:, None]
    return centres, counts, jnp.mean(jnp.min(d, axis=1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--clusters", type=int, default=128)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--seconds", type=float, default=40)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    means = rng.normal(size=(100, args.dim)) * 2
    data = (means[rng.integers(0, 100, 100_000)] + rng.normal(size=(100_000, args.dim))).astype(np.float32)
    centres = jnp.asarray(data[: args.clusters])
    counts = jnp.ones(args.clusters)
    meter = Meter(args.seconds)
    running, step = True, 0
    while running:
        start = (step * args.batch_size) % (len(data) - args.batch_size)
        centres, counts, inertia = update(centres, counts, data[start:start + args.batch_size])
        step += 1
        if step % 100 == 0:
            print(f"step {step} inertia {float(inertia):.3f}")
        inertia.block_until_ready()
        running = meter.step()
    meter.report()


if __name__ == "__main__":
    main()
