"""A mixture density network for travel times between toll gates."""
import os
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

FEATURES, WIDTH, DEPTH, COMPONENTS, BATCH = 40, 192, 3, 8, 512


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
    sizes = [FEATURES] + [WIDTH] * DEPTH + [3 * COMPONENTS]
    return [(jnp.asarray(rng.normal(0, np.sqrt(1.5 / a), (a, b)), jnp.float32), jnp.zeros(b))
            for a, b in zip(sizes[:-1], sizes[1:])]


def mixture(params, x):
    for weight, bias in params[:-1]:
        x = jax.nn.relu(x @ weight + bias)
    weight, bias = params[-1]
    share, mean, spread = jnp.split(x @ weight + bias, 3, axis=-1)
    return jax.nn.log_softmax(share), mean, jax.nn.softplus(spread) + 0.01


def loss_fn(params, x, y):
    log_share, mean, spread = mixture(params, x)
    z = (y[:, None] - mean) / spread
    return -jax.nn.logsumexp(log_share - 0.5 * z ** 2 - jnp.log(spread), axis=-1).mean()


@partial(jax.jit, donate_argnums=(0, 1))
def train_step(params, state, x, y):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    mean, square, count = state
    count = count + 1
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, grads)
    square = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g * g, square, grads)
    scale = 1e-3 * jnp.sqrt(1 - 0.999 ** count) / (1 - 0.9 ** count)
    params = jax.tree.map(lambda p, m, s: p - scale * m / (jnp.sqrt(s) + 1e-8), params, mean, square)
    return params, (mean, square, count), loss


def make_trips(rng, count=30_000):
    x = rng.normal(size=(count, FEATURES)).astype(np.float32)
    base = x @ rng.normal(size=FEATURES) / 8
    jam = rng.random(count) < 1 / (1 + np.exp(-x[:, 0]))
    y = base + jam * rng.gamma(2.0, 0.8, count) + 0.1 * rng.normal(size=count)
    return x, y.astype(np.float32)


def main():
    rng = np.random.default_rng(0)
    x, y = make_trips(rng)
    params = init_params(rng)
    state = (jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params), jnp.zeros(()))
    meter = Meter()
    while True:
        pick = rng.integers(0, len(x), BATCH)
        params, state, loss = train_step(params, state, x[pick], y[pick])
        loss.block_until_ready()
        if meter.count % 50 == 0:
            print(f"step {meter.count} loss {float(loss):.5f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
