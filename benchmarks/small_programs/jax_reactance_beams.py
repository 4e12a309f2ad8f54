"""Steer the beam of an array of coupled antenna elements by tuning the reactance of each."""
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


def element_positions(rng, elements, spacing):
    """Elements at random in a slab, in wavelengths, not too close to each other."""
    side = spacing * (elements / 3) ** 0.5
    points = rng.uniform(0, 1, (1, 3)) * [side, side, 2 * spacing]
    while len(points) < elements:
        candidate = rng.uniform(0, 1, 3) * [side, side, 2 * spacing]
        if np.linalg.norm(points - candidate, axis=1).min() > 0.6 * spacing:
            points = np.concatenate([points, candidate[None]])
    return points


def coupling_matrix(points, resistance=0.05):
    """Mutual impedances of point dipoles; the elements' own losses on the diagonal."""
    distance = 2 * np.pi * np.linalg.norm(points[:, None] - points[None], axis=-1)
    np.fill_diagonal(distance, 1.0)
    z = 1j * np.exp(-1j * distance) / distance
    np.fill_diagonal(z, 1.0 + resistance)
    return z.astype(np.complex64)


def steering(points, azimuth, elevation):
    direction = np.stack([np.cos(elevation) * np.cos(azimuth), np.cos(elevation) * np.sin(azimuth),
                          np.sin(elevation)], axis=-1)
    return np.exp(2j * np.pi * direction @ points.T).astype(np.complex64)


def currents(reactance, coupling, voltage):
    impedance = coupling + jnp.diag(1j * reactance)
    return jnp.linalg.solve(impedance, voltage)


def loss_of(reactance, coupling, voltage, wanted, unwanted):
    """Less power to where nobody listens for each power to the listener."""
    current = currents(reactance, coupling, voltage)
    signal = jnp.abs(wanted @ current) ** 2
    other = jnp.mean(jnp.abs(unwanted @ current) ** 2)
    return jnp.log(other + 1e-6) - jnp.log(signal + 1e-6)


@partial(jax.jit, donate_argnums=(0, 1))
def descend(reactance, velocity, coupling, voltage, wanted, unwanted, lr):
    value, gradient = jax.value_and_grad(loss_of)(reactance, coupling, voltage, wanted, unwanted)
    size = jnp.sqrt(jnp.sum(gradient ** 2)) + 1e-9
    velocity = 0.8 * velocity - lr * gradient / jnp.maximum(size, 1.0)
    return reactance + velocity, velocity, value


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--elements", type=int, default=480)
    parser.add_argument("--spacing", type=float, default=0.35)
    parser.add_argument("--lr", type=float, default=0.02)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    points = element_positions(rng, args.elements, args.spacing)
    coupling = jnp.asarray(coupling_matrix(points))
    voltage = jnp.asarray((rng.random(args.elements) < 0.05).astype(np.complex64))
    wanted = jnp.asarray(steering(points, 0.6, 0.5))
    sky = steering(points, rng.uniform(-np.pi, np.pi, 2000), rng.uniform(-1.5, 1.5, 2000))
    reactance = jnp.asarray(rng.normal(0, 0.5, args.elements), jnp.float32)
    velocity = jnp.zeros_like(reactance)
    meter = Meter()
    while True:
        unwanted = sky[rng.integers(0, len(sky), 24)]
        reactance, velocity, value = descend(reactance, velocity, coupling, voltage, wanted, unwanted, args.lr)
        value = float(value)
        if meter.count % 50 == 0:
            print(f"step {meter.count} loss {value:.4f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
