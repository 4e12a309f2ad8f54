"""Embed podcasts by what is heard together: skip-gram with negative samples."""
import argparse
import os
import time
from functools import partial

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


class Sessions:
    """Pairs of podcasts that were heard one soon after the other."""

    def __init__(self, podcasts, sessions, rng):
        popularity = 1.0 / np.arange(10, podcasts + 10) ** 0.8
        edges = np.cumsum(popularity / popularity.sum())
        first = np.minimum(np.searchsorted(edges, rng.random(sessions)), podcasts - 1)
        follow = (first // 50) * 50 + rng.integers(0, 50, sessions)
        self.pairs = np.stack([first, np.minimum(follow, podcasts - 1)], axis=1).astype(np.int32)
        self.counts = np.bincount(self.pairs.ravel(), minlength=podcasts)

    def batch(self, rng, size):
        rows = self.pairs[rng.integers(0, len(self.pairs), size)]
        return rows[:, 0], rows[:, 1]


class NegativeSampler:
    """Podcasts at random, the popular ones more often."""

    def __init__(self, counts, power=0.75):
        weights = (counts + 1.0) ** power
        self.probabilities = weights / weights.sum()

    def sample(self, rng, shape):
        drawn = rng.choice(len(self.probabilities), size=shape, p=self.probabilities)
        return drawn.astype(np.int32)


def pair_loss(centre, context, negatives):
    positive = jnp.sum(centre * context, axis=-1)
    negative = jnp.einsum("bd,bkd->bk", centre, negatives)
    return -jnp.sum(jax.nn.log_sigmoid(positive)) - jnp.sum(jax.nn.log_sigmoid(-negative))


@jax.jit
def gradients(inputs, outputs, centre, context, negatives):
    rows = inputs[centre], outputs[context], outputs[negatives]
    loss, (gc, gp, gn) = jax.value_and_grad(pair_loss, argnums=(0, 1, 2))(*rows)
    places = jnp.concatenate([context, negatives.ravel()])
    return loss / len(centre), gc, places, jnp.concatenate([gp, gn.reshape(-1, gp.shape[1])])


@partial(jax.jit, donate_argnums=0)
def descend(table, rows, gradient, lr):
    return table.at[rows].add(-lr * gradient)


def update(inputs, outputs, centre, context, negatives, lr):
    loss, own, places, others = gradients(inputs, outputs, centre, context, negatives)
    return descend(inputs, centre, own, lr), descend(outputs, places, others, lr), loss


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--podcasts", type=int, default=500_000)
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--negatives", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.05)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    sessions = Sessions(args.podcasts, 1_000_000, rng)
    sampler = NegativeSampler(sessions.counts)
    inputs = jnp.asarray(rng.normal(0, 0.1, (args.podcasts, args.dim)), jnp.float32)
    outputs = jnp.zeros((args.podcasts, args.dim), jnp.float32)
    meter = Meter()
    while True:
        centre, context = sessions.batch(rng, args.batch_size)
        negatives = sampler.sample(rng, (args.batch_size, args.negatives))
        inputs, outputs, loss = update(inputs, outputs, centre, context, negatives, args.lr)
        value = float(loss)
        if meter.count % 200 == 0:
            print(f"step {meter.count} loss {value:.4f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
