"""Daily smog maps: kriging over stations and hours with a drifting kernel."""
import os
import time

import jax
import jax.numpy as jnp
import numpy as np

HOURS, STATIONS, ITERATIONS, TARGETS = 30, 56, 12, 1600


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

def spatial_kernel(a, b, scale):
    distance = jnp.sqrt(((a[:, None] - b[None]) ** 2).sum(-1) + 1e-9)
    return jnp.exp(-distance / scale)


def temporal_kernel(a, b, scale):
    difference = a[:, None] - b[None]
    return jnp.exp(-0.5 * (difference / scale) ** 2) + 0.1 * jnp.cos(2 * jnp.pi * difference / 24)


def conjugate_gradient(matvec, b, iterations):
    def body(_, state):
        x, r, p, rr = state
        ap = matvec(p)
        alpha = rr / (p @ ap)
        x, r = x + alpha * p, r - alpha * ap
        fresh = r @ r
        return x, r, r + fresh / rr * p, fresh

    start = (jnp.zeros_like(b), b, b, b @ b)
    return jax.lax.fori_loop(0, iterations, body, start)[0]


@jax.jit
def krige(readings, places, targets, space_scale, time_scale, noise):
    """Posterior mean at the targets for every hour."""
    hours = jnp.arange(HOURS, dtype=jnp.float32)
    in_time = temporal_kernel(hours, hours, time_scale)
    in_space = spatial_kernel(places, places, space_scale)
    mean = readings.mean()
    covariance = jnp.kron(in_time, in_space) + noise * jnp.eye(HOURS * STATIONS)
    weights = conjugate_gradient(lambda v: covariance @ v, (readings - mean).ravel(), ITERATIONS)
    cross = spatial_kernel(targets, places, space_scale)
    field = in_time @ weights.reshape(HOURS, STATIONS) @ cross.T
    return mean + field


def make_days(rng, days=60):
    places = rng.uniform(0, 10, (STATIONS, 2)).astype(np.float32)
    hours = np.arange(HOURS)[:, None]
    readings = []
    for _ in range(days):
        centre, width = rng.uniform(2, 8, 2), rng.uniform(1, 3)
        plume = np.exp(-((places - centre) ** 2).sum(1) / width ** 2)
        readings.append(30 + 20 * plume * (1 + np.sin(2 * np.pi * hours / 24)) + rng.normal(0, 1, (HOURS, STATIONS)))
    return places, np.asarray(readings, np.float32)


def main():
    rng = np.random.default_rng(0)
    places, days = make_days(rng)
    targets = rng.uniform(0, 10, (TARGETS, 2)).astype(np.float32)
    winds = rng.uniform(1.5, 4.0, len(days)).astype(np.float32)
    worst = 0.0
    meter = Meter()
    while True:
        day = meter.count % len(days)
        field = krige(days[day], places, targets, winds[day], 3.0, 0.5)
        peak = float(field.max())
        worst = max(worst, peak)
        if meter.count % 20 == 0:
            print(f"step {meter.count} peak {peak:.3f} worst {worst:.3f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
