"""Classify heartbeats with layers of long convolutions whose kernels are sums of decaying oscillations."""
import os
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

LENGTH, WIDTH, STATES, DEPTH, CLASSES, BATCH = 1000, 16, 8, 2, 5, 8


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


def init_layer(key):
    k1, k2, k3 = jax.random.split(key, 3)
    return {
        "decay": jnp.log(jax.random.uniform(k1, (WIDTH, STATES), minval=0.002, maxval=0.1)),
        "frequency": jax.random.uniform(k2, (WIDTH, STATES), minval=0.0, maxval=0.5),
        "weight": jax.random.normal(k3, (WIDTH, STATES)) / STATES,
        "skip": jnp.ones(WIDTH),
        "mix": jax.random.normal(k1, (WIDTH, WIDTH)) / WIDTH ** 0.5,
    }


def init(key):
    keys = jax.random.split(key, DEPTH + 2)
    return {
        "embed": jax.random.normal(keys[0], (WIDTH,)),
        "layers": [init_layer(k) for k in keys[1:-1]],
        "head": jax.random.normal(keys[-1], (WIDTH, CLASSES)) / WIDTH ** 0.5,
    }


def kernel(layer):
    t = jnp.arange(LENGTH)[:, None, None]
    wave = jnp.exp(-jnp.exp(layer["decay"]) * t) * jnp.cos(layer["frequency"] * t)
    return jnp.sum(wave * layer["weight"], axis=-1).T


def long_convolution(x, k):
    """Causal convolution of (batch, width, length) with (width, length)."""
    n = x.shape[-1] + k.shape[-1] - 1
    y = jnp.fft.irfft(jnp.fft.rfft(x, n) * jnp.fft.rfft(k, n), n)
    return y[..., :x.shape[-1]]


def forward(params, signal):
    x = signal[:, None, :] * params["embed"][:, None]
    for layer in params["layers"]:
        y = long_convolution(x, kernel(layer)) + layer["skip"][:, None] * x
        x = x + jnp.einsum("bwt,wv->bvt", jax.nn.relu(y), layer["mix"])
    return jnp.mean(x, axis=-1) @ params["head"]


def loss_of(params, signal, label):
    logp = jax.nn.log_softmax(forward(params, signal))
    return -jnp.mean(jnp.take_along_axis(logp, label[:, None], axis=1))


@partial(jax.jit, donate_argnums=(0, 1))
def train_step(params, velocity, signal, label):
    loss, grads = jax.value_and_grad(loss_of)(params, signal, label)
    velocity = jax.tree_util.tree_map(lambda v, g: 0.9 * v + g, velocity, grads)
    params = jax.tree_util.tree_map(lambda p, v: p - 0.0002 * v, params, velocity)
    return params, velocity, loss


def make_beats(rng, count):
    t = np.arange(LENGTH) / 250
    label = rng.integers(0, CLASSES, count)
    period = 0.6 + 0.1 * label + rng.normal(0, 0.01, count)
    phase = (t / period[:, None]) % 1.0
    beat = np.exp(-((phase - 0.3) / 0.03) ** 2) + (0.1 + 0.05 * label[:, None]) * np.exp(-((phase - 0.6) / 0.08) ** 2)
    return (beat + rng.normal(0, 0.1, (count, LENGTH))).astype(np.float32), label.astype(np.int32)


def main():
    rng = np.random.default_rng(0)
    signals, labels = make_beats(rng, 1000)
    params = init(jax.random.PRNGKey(0))
    velocity = jax.tree_util.tree_map(jnp.zeros_like, params)
    meter = Meter()
    while True:
        pick = rng.integers(0, len(signals), BATCH)
        params, velocity, loss = train_step(params, velocity, signals[pick], labels[pick])
        value = float(loss)
        if meter.count % 50 == 0:
            print(f"step {meter.count} loss {value:.4f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
