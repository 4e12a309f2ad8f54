"""Fit a bid shading model to auction logs with a warmed-up, decaying rate."""
import math
import os
import time

import jax
import jax.numpy as jnp
import numpy as np

NUMBERS, HIDDEN, BATCH = 28, 384, 192
FIELDS = [f"f{i:02d}" for i in range(NUMBERS)]


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

def init_params(rng):
    return {
        "w1": jnp.asarray(rng.normal(0, 1 / np.sqrt(NUMBERS), (NUMBERS, HIDDEN)), jnp.float32),
        "b1": jnp.zeros(HIDDEN),
        "w2": jnp.asarray(rng.normal(0, 1 / np.sqrt(HIDDEN), (HIDDEN, HIDDEN)), jnp.float32),
        "b2": jnp.zeros(HIDDEN),
        "w3": jnp.asarray(rng.normal(0, 1 / np.sqrt(HIDDEN), (HIDDEN, 2)), jnp.float32),
        "b3": jnp.zeros(2),
    }


def win_curve(params, features, bid):
    """Log-odds of winning at a bid: a location and a slope per auction."""
    h = jnp.tanh(features @ params["w1"] + params["b1"])
    h = jnp.tanh(h @ params["w2"] + params["b2"])
    out = h @ params["w3"] + params["b3"]
    return jax.nn.softplus(out[:, 1]) * (bid - out[:, 0])


def loss_fn(params, features, bid, won):
    logit = win_curve(params, features, bid)
    return (jax.nn.softplus(logit) - won * logit).mean()


@jax.jit
def update(params, velocity, features, bid, won, rate, momentum=0.9):
    loss, grads = jax.value_and_grad(loss_fn)(params, features, bid, won)
    velocity = jax.tree.map(lambda v, g: momentum * v + g, velocity, grads)
    params = jax.tree.map(lambda p, v: p - rate * v, params, velocity)
    return params, velocity, loss


def schedule(step, peak=0.1, warmup=100, horizon=20_000):
    if step < warmup:
        return peak * (step + 1) / warmup
    return 0.5 * peak * (1 + math.cos(math.pi * min(step, horizon) / horizon))


class AuctionLog:
    """Auctions as the exchange reports them, in random order."""

    def __init__(self, auctions):
        self.auctions = auctions
        self.rng = np.random.default_rng(1)

    def batch(self, size):
        rows = [self.auctions[i] for i in self.rng.integers(0, len(self.auctions), size)]
        features = jnp.array([[row[name] for name in FIELDS] for row in rows])
        bid = jnp.array([row["bid"] for row in rows])
        won = jnp.array([float(row["won"]) for row in rows])
        return features, bid, won


def make_auctions(rng, count=12_000):
    features = rng.normal(size=(count, NUMBERS))
    price = np.tanh(features @ rng.normal(size=NUMBERS) / 5) + 0.2 * rng.normal(size=count)
    bid = rng.normal(0, 1, count)
    auctions = [dict(zip(FIELDS, row)) for row in features.tolist()]
    for auction, b, p in zip(auctions, bid.tolist(), price.tolist()):
        auction.update(bid=b, won=b > p)
    return auctions


def main():
    rng = np.random.default_rng(0)
    log = AuctionLog(make_auctions(rng))
    params = init_params(rng)
    velocity = jax.tree.map(jnp.zeros_like, params)
    meter = Meter()
    while True:
        features, bid, won = log.batch(BATCH)
        params, velocity, loss = update(params, velocity, features, bid, won, schedule(meter.count))
        loss = float(loss)
        if meter.count % 50 == 0:
            print(f"step {meter.count} loss {loss:.5f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
