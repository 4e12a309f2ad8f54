"""Autoencoder for star spectra; the step samples its batch on the device and is compiled as a whole."""
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


BINS, BATCH, CODE = 600, 512, 8


def star_spectra(count, seed=0):
    """Black-body slopes with absorption lines whose depth depends on two parameters."""
    rng = np.random.default_rng(seed)
    wave = np.linspace(0.4, 1.0, BINS)
    heat, metal = rng.uniform(0.3, 1.5, (count, 1)), rng.uniform(0, 1, (count, 1))
    flux = 1 / (wave ** 5 * (np.exp(1 / (wave * heat)) - 1))
    flux /= flux.mean(1, keepdims=True)
    for centre in rng.uniform(0.42, 0.98, 25):
        depth = rng.uniform(0.1, 0.6) * (metal if rng.random() < 0.5 else 1 / (1 + heat))
        flux *= 1 - depth * np.exp(-0.5 * ((wave - centre) / 0.003) ** 2)
    flux += 0.01 * rng.standard_normal(flux.shape)
    return ((flux - flux.mean(0)) / flux.std(0)).astype(np.float32)


def init(key, sizes):
    return [{"w": jax.random.normal(k, (a, b)) * (2 / a) ** 0.5, "b": jnp.zeros(b)}
            for k, a, b in zip(jax.random.split(key, len(sizes)), sizes[:-1], sizes[1:])]


def reconstruct(params, x):
    for p in params[:-1]:
        x = jax.nn.relu(x @ p["w"] + p["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def loss_fn(params, x):
    return jnp.mean(jnp.square(reconstruct(params, x) - x))


@partial(jax.jit, donate_argnums=(0, 1))
def train_step(params, momentum, key, data):
    key, use = jax.random.split(key)
    x = data[jax.random.randint(use, (BATCH,), 0, data.shape[0])]
    loss, grads = jax.value_and_grad(loss_fn)(params, x)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
    params = jax.tree.map(lambda p, m: p - 0.01 * m, params, momentum)
    return params, momentum, key, loss


def main():
    data = jnp.asarray(star_spectra(6000))
    params = init(jax.random.PRNGKey(0), [BINS, 512, 256, CODE, 256, 512, BINS])
    momentum = jax.tree.map(jnp.zeros_like, params)
    key = jax.random.PRNGKey(1)
    meter, step = Meter(), 0
    while True:
        params, momentum, key, loss = train_step(params, momentum, key, data)
        step += 1
        if step % 50 == 0:
            print(f"step {step} loss {float(loss):.4f}")
        jax.block_until_ready(loss)
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
