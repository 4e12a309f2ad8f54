"""Predict the next sample of noisy waves with a gated recurrent unit."""
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

def init(key, hidden=128):
    k1, k2, k3 = jax.random.split(key, 3)
    return {"wx": jax.random.normal(k1, (1, 3 * hidden)), "wh": jax.random.normal(k2, (hidden, 3 * hidden)) / hidden ** 0.5,
            "b": jnp.zeros(3 * hidden), "out": jax.random.normal(k3, (hidden, 1)) / hidden ** 0.5}


def loss_fn(params, x):
    hidden = params["wh"].shape[0]
    gates = x[:, :-1, None] @ params["wx"] + params["b"]

    def cell(h, g):
        gz, gr, gn = jnp.split(g, 3, axis=-1)
        hz, hr, hn = jnp.split(h @ params["wh"], 3, axis=-1)
        z, r = jax.nn.sigmoid(gz + hz), jax.nn.sigmoid(gr + hr)
        h = z * h + (1 - z) * jnp.tanh(gn + r * hn)
        return h, h

    _, h = jax.lax.scan(cell, jnp.zeros((len(x), hidden)), gates.swapaxes(0, 1))
    y = (h @ params["out"])[..., 0].T
    return jnp.mean((y - x[:, 1:]) ** 2)


@jax.jit
def train_step(params, m, v, t, x):
    loss, grads = jax.value_and_grad(loss_fn)(params, x)
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, grads)
    v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, grads)
    rate = 1e-3 * jnp.sqrt(1 - 0.999 ** t) / (1 - 0.9 ** t)
    params = jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) + 1e-8), params, m, v)
    return params, m, v, loss


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--length", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=40)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    t = np.arange(args.length + 1) * 0.2
    waves = np.sin(rng.uniform(0.5, 3, (4096, 1)) * t + rng.uniform(0, 6, (4096, 1))) + 0.05 * rng.normal(size=(4096, len(t)))
    waves = waves.astype(np.float32)
    params = init(jax.random.key(0))
    m, v = jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params)
    meter = Meter(args.seconds)
    running, step = True, 0
    while running:
        step += 1
        x = waves[rng.integers(0, len(waves), args.batch_size)]
        params, m, v, loss = train_step(params, m, v, float(step), x)
        if step % 100 == 0:
            print(f"step {step} loss {float(loss):.5f}")
        running = meter.step()
    meter.report()


if __name__ == "__main__":
    main()
