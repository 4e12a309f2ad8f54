"""Arrival-time picking on synthetic seismograms with a small 1-D network, written without a framework."""
import os
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


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


SAMPLES, BATCH = 512, 8


def seismograms(count, rng):
    """Three components; noise, then a decaying wavelet from the arrival on."""
    t = np.arange(SAMPLES)
    arrival = rng.integers(80, 420, count)
    x = 0.3 * rng.standard_normal((count, 3, SAMPLES))
    for i in range(count):
        s = t - arrival[i]
        wave = np.where(s >= 0, np.exp(-s / rng.uniform(20, 60)) * np.sin(s * rng.uniform(0.2, 0.6)), 0)
        x[i] += wave * rng.normal(0, 1.5, (3, 1))
    label = np.exp(-0.5 * ((t - arrival[:, None]) / 5.0) ** 2)
    return x.transpose(0, 2, 1).astype(np.float32), label.astype(np.float32), arrival


def init_conv(key, width, inputs, outputs):
    scale = (2 / (width * inputs)) ** 0.5
    return {"w": scale * jax.random.normal(key, (width, inputs, outputs)), "b": jnp.zeros(outputs)}


def init(key):
    shapes = [(5, 3, 16)] + [(5, 16, 16)] * 11
    keys = jax.random.split(key, len(shapes) + 1)
    convs = [init_conv(k, *s) for k, s in zip(keys, shapes)]
    scales = [{"g": jnp.ones(s[2]), "s": jnp.zeros(s[2])} for s in shapes]
    return {"convs": convs, "scales": scales, "out": init_conv(keys[-1], 1, 16, 1)}


def conv(p, x):
    y = lax.conv_general_dilated(x, p["w"], (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))
    return y + p["b"]


def apply(params, x):
    for p, n in zip(params["convs"], params["scales"]):
        x = jax.nn.relu(conv(p, x) * n["g"] + n["s"])
    return conv(params["out"], x)[..., 0]


def loss_fn(params, x, y):
    z = apply(params, x)
    return jnp.mean(jnp.maximum(z, 0) - z * y + jnp.log1p(jnp.exp(-jnp.abs(z))))


loss_and_grad = jax.jit(jax.value_and_grad(loss_fn))


class Adam:
    def __init__(self, params, lr=1e-3, b1=0.9, b2=0.999, eps=1e-8):
        self.lr, self.b1, self.b2, self.eps = lr, b1, b2, eps
        self.m = jax.tree.map(jnp.zeros_like, params)
        self.v = jax.tree.map(jnp.zeros_like, params)
        self.t = 0

    def update(self, params, grads):
        self.t += 1
        self.m = jax.tree.map(lambda m, g: self.b1 * m + (1 - self.b1) * g, self.m, grads)
        self.v = jax.tree.map(lambda v, g: self.b2 * v + (1 - self.b2) * g * g, self.v, grads)
        c1, c2 = 1 - self.b1 ** self.t, 1 - self.b2 ** self.t
        return jax.tree.map(lambda p, m, v: p - self.lr * (m / c1) / (jnp.sqrt(v / c2) + self.eps),
                            params, self.m, self.v)


@jax.jit
def pick_error(params, x, arrival):
    return jnp.mean(jnp.abs(apply(params, x).argmax(1) - arrival))


def main():
    rng = np.random.default_rng(5)
    x, y, _ = seismograms(1500, rng)
    check_x, _, check_arrival = seismograms(64, rng)
    params = init(jax.random.PRNGKey(5))
    optimizer = Adam(params)
    meter, step = Meter(), 0
    while True:
        rows = rng.integers(0, len(x), BATCH)
        loss, grads = loss_and_grad(params, x[rows], y[rows])
        params = optimizer.update(params, grads)
        step += 1
        if step % 100 == 0:
            print(f"step {step} loss {loss:.4f} pick error {pick_error(params, check_x, check_arrival):.1f} samples")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
