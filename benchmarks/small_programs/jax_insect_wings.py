"""Recognise insects by the sound of their wings with separable convolutions over time."""
import os
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

LENGTH, BATCH, CLASSES = 512, 8, 6
WIDTHS = (32, 48)
TAPS = 7


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


def init(key):
    params, width = [], 8
    for out in WIDTHS:
        key, k1, k2 = jax.random.split(key, 3)
        params.append({
            "depth": jax.random.normal(k1, (TAPS, 1, width)) / TAPS ** 0.5,
            "point": jax.random.normal(k2, (width, out)) / width ** 0.5,
            "bias": jnp.zeros(out),
        })
        width = out
    key, k1, k2 = jax.random.split(key, 3)
    return {
        "stem": jax.random.normal(k1, (16, 8)) / 4,
        "blocks": params,
        "head": jax.random.normal(k2, (width, CLASSES)) / width ** 0.5,
    }


def depthwise(x, w):
    """Each channel of (batch, time, channels) with its own filter."""
    return lax.conv_general_dilated(
        x, w, window_strides=(1,), padding="SAME",
        dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=x.shape[-1])


def halve(x):
    return x.reshape(x.shape[0], x.shape[1] // 2, 2, x.shape[2]).mean(axis=2)


def forward(params, wave):
    x = wave.reshape(wave.shape[0], LENGTH, 16) @ params["stem"]
    for block in params["blocks"]:
        x = jax.nn.relu(depthwise(x, block["depth"]) @ block["point"] + block["bias"])
        x = halve(x)
    return x.mean(axis=1) @ params["head"]


def loss_of(params, wave, label):
    logp = jax.nn.log_softmax(forward(params, wave))
    return -jnp.mean(jnp.take_along_axis(logp, label[:, None], axis=1))


@partial(jax.jit, donate_argnums=(0, 1))
def train_step(params, velocity, wave, label):
    loss, grads = jax.value_and_grad(loss_of)(params, wave, label)
    velocity = jax.tree_util.tree_map(lambda v, g: 0.9 * v + g, velocity, grads)
    params = jax.tree_util.tree_map(lambda p, v: p - 0.01 * v, params, velocity)
    return params, velocity, loss


def make_recordings(rng, count):
    """Wing beats with overtones: the species differ in pitch."""
    t = np.arange(LENGTH * 16) / 8000
    label = rng.integers(0, CLASSES, count)
    pitch = 150 + 90 * label + rng.normal(0, 8, count)
    phase = 2 * np.pi * pitch[:, None] * t + rng.uniform(0, 6, (count, 1))
    wave = np.sin(phase) + 0.5 * np.sin(2 * phase) + 0.3 * rng.normal(size=(count, len(t)))
    return wave.astype(np.float32), label.astype(np.int32)


def main():
    rng = np.random.default_rng(0)
    waves, labels = make_recordings(rng, 300)
    params = init(jax.random.PRNGKey(0))
    velocity = jax.tree_util.tree_map(jnp.zeros_like, params)
    meter = Meter()
    while True:
        pick = rng.integers(0, len(waves), BATCH)
        params, velocity, loss = train_step(params, velocity, waves[pick], labels[pick])
        value = float(loss)
        if meter.count % 50 == 0:
            print(f"step {meter.count} loss {value:.4f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
