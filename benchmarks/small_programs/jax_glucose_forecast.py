"""Learn how blood glucose follows meals and insulin, and check free-running forecasts now and then."""
import argparse
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


def init(key, hidden):
    sizes = [8, hidden, hidden, 1]
    keys = jax.random.split(key, 3)
    return [{"w": jax.random.normal(k, (m, n)) / m ** 0.5, "b": jnp.zeros(n)}
            for k, m, n in zip(keys, sizes, sizes[1:])]


def change(params, history, drive):
    """The next change of glucose from its last values and what was eaten and injected."""
    x = jnp.concatenate([history, drive], axis=-1)
    for layer in params[:-1]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return (x @ params[-1]["w"] + params[-1]["b"])[..., 0]


def loss_of(params, history, drive, target):
    return jnp.mean((history[:, -1] + 0.1 * change(params, history, drive) - target) ** 2)


@partial(jax.jit, donate_argnums=(0, 1))
def train_step(params, velocity, history, drive, target):
    loss, grads = jax.value_and_grad(loss_of)(params, history, drive, target)
    velocity = jax.tree_util.tree_map(lambda v, g: 0.9 * v + g, velocity, grads)
    params = jax.tree_util.tree_map(lambda p, v: p - 0.05 * v, params, velocity)
    return params, velocity, loss


def free_run(params, history, drives):
    """Forecasts that are fed back: (patients, steps) from (steps, patients, 2)."""

    def advance(history, drive):
        value = history[:, -1] + 0.1 * change(params, history, drive)
        return jnp.concatenate([history[:, 1:], value[:, None]], axis=1), value

    _, path = jax.lax.scan(advance, history, drives)
    return path.T


def simulate(rng, patients, steps):
    """Deviations of glucose with meals and insulin as two delayed pulses."""
    drive = (rng.random((steps, patients, 2)) < 0.03) * rng.gamma(3, 0.3, (steps, patients, 2))
    glucose = np.zeros((steps, patients))
    gut, insulin = np.zeros(patients), np.zeros(patients)
    for t in range(1, steps):
        gut = 0.9 * gut + drive[t, :, 0]
        insulin = 0.93 * insulin + drive[t, :, 1]
        glucose[t] = 0.97 * glucose[t - 1] + 0.1 * gut - 0.08 * insulin * (1 + np.tanh(glucose[t - 1]))
    return glucose.astype(np.float32), drive.astype(np.float32)


def cut(glucose, drive, time_index, patient):
    """Six past values and the drive for random moments of random patients."""
    past = glucose[time_index[:, None] + np.arange(-6, 0), patient[:, None]]
    return past, drive[time_index, patient], glucose[time_index, patient]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--patients", type=int, default=60)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--horizon", type=int, default=48)
    parser.add_argument("--check-every", type=int, default=40)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    glucose, drive = simulate(rng, args.patients, 2000)
    params = init(jax.random.PRNGKey(0), args.hidden)
    velocity = jax.tree_util.tree_map(jnp.zeros_like, params)
    meter = Meter()
    while True:
        moment = rng.integers(6, 1800, args.batch_size)
        patient = rng.integers(0, args.patients, args.batch_size)
        params, velocity, loss = train_step(params, velocity, *cut(glucose, drive, moment, patient))
        value = float(loss)
        if meter.count % args.check_every == 0:
            start = int(rng.integers(1800, 2000 - args.horizon))
            path = free_run(params, glucose[start - 6:start].T, drive[start:start + args.horizon])
            error = np.abs(np.asarray(path) - glucose[start:start + args.horizon].T).mean()
            print(f"step {meter.count} loss {value:.5f} free error {error:.4f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
