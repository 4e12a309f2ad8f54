"""Encode queries and look up their nearest documents."""
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

def init(key, sizes=(128, 256, 256, 96)):
    keys = jax.random.split(key, len(sizes) - 1)
    return [(jax.random.normal(k, (i, o)) * (2 / i) ** 0.5, jnp.zeros(o)) for k, i, o in zip(keys, sizes, sizes[1:])]


def encode(params, x):
    for w, b in params[:-1]:
        x = jax.nn.gelu(x @ w + b)
    w, b = params[-1]
    z = x @ w + b
    return z / jnp.linalg.norm(z, axis=-1, keepdims=True)


@jax.jit
def best(params, table, queries):
    score = encode(params, queries) @ table.T
    return jnp.max(score, axis=1), jnp.argmax(score, axis=1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--documents", type=int, default=8000)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=40)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    documents = rng.normal(size=(args.documents, 128)).astype(np.float32)
    params = init(jax.random.key(0))
    table = jax.jit(encode)(params, documents)
    meter = Meter(args.seconds)
    running, batches, hits = True, 0, 0
    while running:
        source = rng.integers(0, args.documents, args.batch_size)
        queries = documents[source] + 0.3 * rng.standard_normal((args.batch_size, 128), np.float32)
        score, found = best(params, table, queries)
        hits += int((np.asarray(found) == source).sum())
        batches += 1
        if batches % 200 == 0:
            print(f"batches {batches} recall {hits / (batches * args.batch_size):.3f} score {float(score.mean()):.3f}")
        running = meter.step()
    meter.report()


if __name__ == "__main__":
    main()
