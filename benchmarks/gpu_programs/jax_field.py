"""Fits a coordinate network with Fourier features to a procedural density volume."""
import os
import time
from functools import partial

import jax
import jax.numpy as jnp

SMOKE = bool(os.environ.get("SMOKE"))
WIDTH, HIDDEN, FREQUENCIES, POINTS = (32, 2, 16, 128) if SMOKE else (2048, 6, 256, 32768)
COMPUTE = jnp.float32 if SMOKE else jnp.bfloat16
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


def init(key):
    """Master weights in single precision."""
    sizes = [2 * FREQUENCIES] + [WIDTH] * (HIDDEN + 1) + [1]
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        key, sub = jax.random.split(key)
        layers.append({"w": jnp.sqrt(2 / a) * jax.random.normal(sub, (a, b)), "b": jnp.zeros(b)})
    return layers


def features(points, frequencies):
    angle = points @ frequencies
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=1)


def network(layers, x):
    x = x.astype(COMPUTE)
    for layer in layers[:-1]:
        x = jax.nn.relu(x @ layer["w"].astype(COMPUTE) + layer["b"].astype(COMPUTE))
    return (x @ layers[-1]["w"].astype(COMPUTE))[:, 0].astype(jnp.float32) + layers[-1]["b"]


def density(points):
    """A gyroid inside a soft ball."""
    x, y, z = (6 * points).T
    gyroid = jnp.sin(x) * jnp.cos(y) + jnp.sin(y) * jnp.cos(z) + jnp.sin(z) * jnp.cos(x)
    return jax.nn.sigmoid(4 * gyroid) * jax.nn.sigmoid(10 * (0.9 - jnp.linalg.norm(points, axis=1)))


def loss(layers, frequencies, points):
    predicted = network(layers, features(points, frequencies))
    return jnp.mean((predicted - density(points)) ** 2)


def adam(params, grads, state, rate):
    step = state["step"] + 1
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["m"], grads)
    v = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, state["v"], grads)
    a, b = 1 - 0.9**step, 1 - 0.99**step
    params = jax.tree.map(lambda p, m, v: p - rate * (m / a) / (jnp.sqrt(v / b) + 1e-8), params, m, v)
    return params, {"m": m, "v": v, "step": step}


@partial(jax.jit, donate_argnums=(0, 1))
def update(layers, state, frequencies, key):
    key, sub = jax.random.split(key)
    points = jax.random.uniform(sub, (POINTS, 3), minval=-1.0, maxval=1.0)
    error, grads = jax.value_and_grad(loss)(layers, frequencies, points)
    rate = 2e-4 * 0.999 ** (state["step"] / 10)
    layers, state = adam(layers, grads, state, rate)
    return layers, state, key, error


def main():
    key = jax.random.key(0)
    layers = init(key)
    frequencies = 3.0 * jax.random.normal(jax.random.key(1), (3, FREQUENCIES))
    state = {
        "m": jax.tree.map(jnp.zeros_like, layers),
        "v": jax.tree.map(jnp.zeros_like, layers),
        "step": jnp.zeros(()),
    }
    meter = Meter()
    step = 0
    while True:
        layers, state, key, error = update(layers, state, frequencies, key)
        STATE["error"] = error
        step += 1
        if step % 50 == 0:
            print(f"step {step}: mean squared error {float(error):.6f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
