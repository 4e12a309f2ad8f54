"""Ensemble Kalman filtering of a drifting reaction-diffusion front along a river, as a twin experiment."""
import os
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

SMOKE = bool(os.environ.get("SMOKE"))
MEMBERS, SIZE = (16, 4096) if SMOKE else (64, 131072)
SUBSTEPS, STEP, DRIFT, MIXING = 40, 0.01, 2.0, 0.5
EVERY, NOISE, INFLATION = 64, 0.3, 1.02
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


def tendency(x):
    """Drift, mixing and a reaction with two stable states, on a ring."""
    left, right = jnp.roll(x, 1, -1), jnp.roll(x, -1, -1)
    return 0.5 * DRIFT * (left - right) + MIXING * (left - 2 * x + right) - x + 2 * jnp.tanh(x)


def rk4(x):
    k1 = tendency(x)
    k2 = tendency(x + 0.5 * STEP * k1)
    k3 = tendency(x + 0.5 * STEP * k2)
    k4 = tendency(x + STEP * k3)
    return x + STEP / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


@partial(jax.jit, donate_argnums=0)
def forecast(x):
    return jax.lax.fori_loop(0, SUBSTEPS, lambda _, x: rk4(x), x)


def analysis(ensemble, observed):
    """Ensemble transform update: new members are combinations of the old ones."""
    ensemble = np.asarray(ensemble)
    mean = ensemble.mean(axis=0)
    spread = INFLATION * (ensemble - mean)
    seen = spread[:, ::EVERY] / NOISE
    innovation = (observed - mean[::EVERY]) / NOISE
    values, vectors = np.linalg.eigh(seen @ seen.T / (MEMBERS - 1) + np.eye(MEMBERS, dtype=np.float32))
    weights = vectors @ ((vectors.T @ (seen @ innovation)) / values) / (MEMBERS - 1)
    transform = (vectors / np.sqrt(values)) @ vectors.T
    new = mean + (transform + weights) @ spread
    return jnp.asarray(new, dtype=jnp.float32), mean + weights @ spread


def observe(truth, rng):
    """Every sixty-fourth variable with noise, as the instruments report it."""
    seen = np.asarray(truth[::EVERY])
    return seen + NOISE * rng.standard_normal(seen.shape, dtype=np.float32)


@jax.jit
def error(mean, truth):
    return jnp.sqrt(jnp.mean((mean - truth) ** 2))


def start(key):
    k1, k2 = jax.random.split(key)
    truth = 2 * jax.random.normal(k1, (SIZE,))
    for _ in range(20):
        truth = forecast(truth)
    ensemble = truth + 0.5 * jax.random.normal(k2, (MEMBERS, SIZE))
    return truth, ensemble


def main():
    rng = np.random.default_rng(0)
    truth, ensemble = start(jax.random.key(0))
    meter = Meter()
    cycle = 0
    while True:
        truth, ensemble = forecast(truth), forecast(ensemble)
        ensemble, mean = analysis(ensemble, observe(truth, rng))
        STATE["mean"] = mean
        cycle += 1
        if cycle % 10 == 0:
            print(f"cycle {cycle}: error of the mean {float(error(mean, truth)):.5f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
