"""Serve similarity searches: the most similar molecules of a library by their count fingerprints."""
import argparse
import os
import time

import jax
import jax.numpy as jnp
import numpy as np


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


def fingerprints(rng, count, bits, centres):
    """How often each substructure occurs in a molecule; families share most of them."""
    family = rng.integers(0, len(centres), count)
    mean = centres[family]
    return np.minimum(rng.poisson(mean), 15).astype(np.uint8)


@jax.jit
def squared_norm(x):
    x = x.astype(jnp.int32)
    return jnp.sum(x * x, axis=1)


@jax.jit
def similarities(queries, library, norms):
    """Tanimoto's coefficient for counts."""
    common = queries.astype(jnp.int32) @ library.astype(jnp.int32).T
    own = squared_norm(queries)
    return common / (own[:, None] + norms[None, :] - common)


@jax.jit
def nearest_above(scores, threshold=0.6):
    """The best match of each query and the number of close ones."""
    best = jnp.argmax(scores, axis=1)
    return best, jnp.max(scores, axis=1), jnp.sum(scores > threshold, axis=1)


class Library:
    def __init__(self, prints):
        self.prints = jnp.asarray(prints)
        self.norms = squared_norm(self.prints)

    def search(self, queries):
        return nearest_above(similarities(jnp.asarray(queries), self.prints, self.norms))


def request(rng, prints, size):
    """Molecules like those of the library with a few changed substructures."""
    chosen = rng.integers(0, len(prints), size)
    queries = prints[chosen].copy()
    change = rng.random(queries.shape) < 0.02
    queries[change] = rng.integers(0, 3, int(change.sum()))
    return chosen, queries


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--molecules", type=int, default=8000)
    parser.add_argument("--bits", type=int, default=512)
    parser.add_argument("--request-size", type=int, default=16)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    centres = rng.gamma(0.15, 2.0, (60, args.bits))
    prints = fingerprints(rng, args.molecules, args.bits, centres)
    library = Library(prints)
    meter = Meter()
    right = 0
    while True:
        chosen, queries = request(rng, prints, args.request_size)
        best, score, close = library.search(queries)
        right += int((np.asarray(best) == chosen).sum())
        if meter.count % 50 == 0:
            print(f"request {meter.count} score {float(score.mean()):.4f} close {int(close.sum())}")
        if not meter.step():
            break
    meter.report()
    print(f"found again {right / (meter.count * args.request_size):.3f}")


if __name__ == "__main__":
    main()
