"""Autoencoder with relaxed discrete codes (Gumbel softmax)."""
import argparse
import functools
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

def init(key, sizes):
    keys = jax.random.split(key, len(sizes) - 1)
    return [(jax.random.normal(k, (i, o)) * (2 / i) ** 0.5, jnp.zeros(o)) for k, i, o in zip(keys, sizes, sizes[1:])]


def mlp(layers, x):
    for w, b in layers[:-1]:
        x = jax.nn.relu(x @ w + b)
    w, b = layers[-1]
    return x @ w + b


def loss_fn(params, x, noise, temperature):
    logits = mlp(params["encoder"], x).reshape(len(x), 12, 16)
    code = jax.nn.softmax((logits + noise) / temperature)
    y = mlp(params["decoder"], code.reshape(len(x), -1))
    q = jax.nn.softmax(logits)
    kl = jnp.sum(q * (jnp.log(q + 1e-9) + jnp.log(16.0)), axis=(1, 2))
    return jnp.mean(jnp.sum((x - y) ** 2, axis=1) + 0.05 * kl)


@functools.partial(jax.jit, static_argnames=("temperature",))
def train_step(params, momentum, x, noise, temperature):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, noise, temperature)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
    params = jax.tree.map(lambda p, m: p - 5e-4 * m, params, momentum)
    return params, momentum, loss


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=40)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(40, 64))
    data = (centres[rng.integers(0, 40, 20_000)] + 0.2 * rng.normal(size=(20_000, 64))).astype(np.float32)
    params = {"encoder": init(jax.random.key(0), [64, 256, 192]), "decoder": init(jax.random.key(1), [192, 256, 64])}
    momentum = jax.tree.map(jnp.zeros_like, params)
    meter = Meter(args.seconds)
    running, step = True, 0
    while running:
        temperature = max(0.3, 3.0 - 0.004 * (step // 40))
        x = data[rng.integers(0, len(data), args.batch_size)]
        noise = rng.gumbel(size=(args.batch_size, 12, 16)).astype(np.float32)
        params, momentum, loss = train_step(params, momentum, x, noise, temperature)
        step += 1
        if step % 100 == 0:
            print(f"step {step} loss {float(loss):.3f} temperature {temperature:.3f}")
        running = meter.step()
    meter.report()


if __name__ == "__main__":
    main()
