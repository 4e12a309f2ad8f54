"""Regress daily glacier melt from weather with a deep residual network."""
import os
import time

import jax
import jax.numpy as jnp
import numpy as np

FEATURES, WIDTH, BLOCKS, BATCH = 32, 96, 6, 128


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
    def dense(a, b, scale=1.0):
        return {"w": jnp.asarray(scale * rng.normal(0, 1 / np.sqrt(a), (a, b)), jnp.float32), "b": jnp.zeros(b)}

    return {
        "in": dense(FEATURES, WIDTH),
        "blocks": [{"up": dense(WIDTH, WIDTH), "down": dense(WIDTH, WIDTH, 0.3)} for _ in range(BLOCKS)],
        "out": dense(WIDTH, 1),
    }


def apply(params, x):
    h = x @ params["in"]["w"] + params["in"]["b"]
    for block in params["blocks"]:
        y = jax.nn.gelu(h @ block["up"]["w"] + block["up"]["b"])
        h = h + y @ block["down"]["w"] + block["down"]["b"]
    return (h @ params["out"]["w"] + params["out"]["b"])[:, 0]


def loss_fn(params, x, y):
    error = apply(params, x) - y
    return jnp.where(jnp.abs(error) < 1, 0.5 * error ** 2, jnp.abs(error) - 0.5).mean()


loss_and_grad = jax.jit(jax.value_and_grad(loss_fn))


def adam_init(params):
    zeros = jax.tree.map(jnp.zeros_like, params)
    return {"mean": zeros, "square": zeros, "count": 0}


def adam_update(params, grads, state, rate=1e-3, b1=0.9, b2=0.999, decay=1e-4):
    """One AdamW step; returns the new parameters and optimizer state."""
    count = state["count"] + 1
    mean = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state["mean"], grads)
    square = jax.tree.map(lambda s, g: b2 * s + (1 - b2) * g * g, state["square"], grads)
    mean_scale, square_scale = 1 / (1 - b1 ** count), 1 / (1 - b2 ** count)

    def apply_one(p, m, s):
        return p - rate * (m * mean_scale / (jnp.sqrt(s * square_scale) + 1e-8) + decay * p)

    params = jax.tree.map(apply_one, params, mean, square)
    return params, {"mean": mean, "square": square, "count": count}


def make_weather(rng, days=12_000):
    x = rng.normal(size=(days, FEATURES)).astype(np.float32)
    w = rng.normal(size=(FEATURES, 3)) / np.sqrt(FEATURES)
    z = x @ w
    y = np.maximum(z[:, 0], 0) * (1 + np.tanh(z[:, 1])) + 0.3 * z[:, 2] + 0.05 * rng.normal(size=days)
    return x, y.astype(np.float32)


def main():
    rng = np.random.default_rng(0)
    x, y = make_weather(rng)
    params = init_params(rng)
    state = adam_init(params)
    meter = Meter()
    while True:
        pick = rng.integers(0, len(x), BATCH)
        loss, grads = loss_and_grad(params, x[pick], y[pick])
        params, state = adam_update(params, grads, state)
        jax.block_until_ready(params)
        if meter.count % 50 == 0:
            print(f"step {meter.count} loss {float(loss):.5f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
