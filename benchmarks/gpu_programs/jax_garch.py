"""Fits a GARCH(1,1) volatility model to every stock of a universe at once by maximum likelihood."""
import os
import time
from functools import partial

import jax
import jax.numpy as jnp

SMOKE = bool(os.environ.get("SMOKE"))
DAYS, STOCKS = (64, 32) if SMOKE else (500, 49152)
STATE = {}


def wait():
    jax.block_until_ready(STATE)


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


def unpack(raw):
    """Unconstrained numbers to (base variance, weight of news, persistence) with news + persistence < 1."""
    total = jax.nn.sigmoid(raw["total"])
    share = jax.nn.sigmoid(raw["share"])
    return jax.nn.softplus(raw["base"]), total * share, total * (1 - share)


def variances(raw, squares):
    """Conditional variance of each day: h[t] = base + news * r[t-1]^2 + persistence * h[t-1]."""
    base, news, persistence = unpack(raw)
    start = squares.mean(axis=0)

    def day(h, square):
        h = base + news * square + persistence * h
        return h, h

    _, rest = jax.lax.scan(day, start, squares[:-1])
    return jnp.concatenate([start[None], rest])


def loss(raw, squares):
    """Mean negative log likelihood of Gaussian returns."""
    h = variances(raw, squares)
    return 0.5 * jnp.mean(jnp.log(h) + squares / h, axis=0).sum()


def adam_init(params):
    zeros = jax.tree.map(jnp.zeros_like, params)
    return {"m": zeros, "v": jax.tree.map(jnp.zeros_like, params), "t": jnp.zeros((), jnp.float32)}


def adam(params, grads, state, rate):
    t = state["t"] + 1
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["m"], grads)
    v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, state["v"], grads)
    a, b = 1 - 0.9**t, 1 - 0.999**t
    params = jax.tree.map(lambda p, m, v: p - rate * (m / a) / (jnp.sqrt(v / b) + 1e-8), params, m, v)
    return params, {"m": m, "v": v, "t": t}


@partial(jax.jit, donate_argnums=(0, 1))
def update(raw, state, squares):
    value, grads = jax.value_and_grad(loss)(raw, squares)
    raw, state = adam(raw, grads, state, 0.02)
    return raw, state, value / squares.shape[1]


@partial(jax.jit, static_argnums=(1, 2))
def simulate(key, days, stocks):
    """Squared returns (in percent) from known parameters."""
    k1, k2, k3 = jax.random.split(key, 3)
    news = jax.random.uniform(k1, (stocks,), minval=0.03, maxval=0.15)
    persistence = jax.random.uniform(k2, (stocks,), minval=0.75, maxval=0.84)

    def day(h, z):
        square = h * z * z
        return 0.05 + news * square + persistence * h, square

    noise = jax.random.normal(k3, (days, stocks))
    return jax.lax.scan(day, jnp.ones(stocks), noise)[1]


def main():
    squares = simulate(jax.random.key(0), DAYS, STOCKS)
    begin = {"base": -2.0, "total": 2.0, "share": -1.0}
    raw = {name: jnp.full((STOCKS,), value, jnp.float32) for name, value in begin.items()}
    state = adam_init(raw)
    meter = Meter()
    step = 0
    while True:
        raw, state, value = update(raw, state, squares)
        STATE["loss"] = value
        step += 1
        if step % 20 == 0:
            _, news, persistence = (float(p.mean()) for p in unpack(raw))
            print(f"step {step}: likelihood {float(value):.5f}, news {news:.4f}, persistence {persistence:.4f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
