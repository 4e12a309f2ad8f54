"""Langevin dynamics of small argon clusters under a learned potential."""
import os
import time

import jax
import jax.numpy as jnp
import numpy as np

ATOMS, REPLICAS, HIDDEN, SUBSTEPS = 9, 12, 32, 4


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

def init_params(rng):
    sizes = [12, HIDDEN, HIDDEN, 1]
    return [(jnp.asarray(rng.normal(0, 1 / np.sqrt(a), (a, b)), jnp.float32), np.zeros(b, np.float32))
            for a, b in zip(sizes[:-1], sizes[1:])]


PAIRS = np.triu_indices(ATOMS, 1)
CENTRES = np.linspace(0.8, 3.0, 12).astype(np.float32)


def energy(position, params):
    """Energy of one cluster: a radial network summed over pairs, and a repulsive wall."""
    offset = position[PAIRS[0]] - position[PAIRS[1]]
    distance = jnp.sqrt((offset ** 2).sum(-1) + 1e-6)
    h = jnp.exp(-8 * (distance[:, None] - CENTRES) ** 2)
    for weight, bias in params[:-1]:
        h = jnp.tanh(h @ weight + bias)
    weight, bias = params[-1]
    pair = (h @ weight + bias)[:, 0] * jnp.exp(-distance)
    trap = 0.05 * (position ** 2).sum()
    return pair.sum() + 0.2 * (distance ** -6).clip(max=50.0).sum() + trap


def forces(position, params):
    return -jax.jacfwd(energy)(position, params)


@jax.jit
def advance(position, velocity, force, noise, params):
    """A few steps of the BAOAB integrator for all replicas."""
    step, friction, heat = 0.005, 1.0, 0.1
    keep = jnp.exp(-friction * step)

    def body(state, noise):
        position, velocity, force = state
        velocity = velocity + 0.5 * step * force
        position = position + 0.5 * step * velocity
        kick = jnp.sqrt(heat * (1 - keep ** 2)) * noise
        velocity = keep * velocity + kick
        position = position + 0.5 * step * velocity
        force = jax.vmap(forces, (0, None))(position, params)
        velocity = velocity + 0.5 * step * force
        return (position, velocity, force), None

    (position, velocity, force), _ = jax.lax.scan(body, (position, velocity, force), noise)
    kinetic = 0.5 * (velocity ** 2).sum((1, 2)).mean()
    radius = jnp.sqrt((position ** 2).sum(-1).mean())
    return position, velocity, force, kinetic, radius


def main():
    rng = np.random.default_rng(0)
    params = init_params(rng)
    grid = np.stack(np.meshgrid(*[np.arange(3)] * 3), -1).reshape(-1, 3)[:ATOMS] * 1.2 - 1.2
    position = jnp.asarray((grid + 0.05 * rng.normal(size=(REPLICAS, ATOMS, 3))).astype(np.float32))
    velocity = jnp.asarray(np.zeros(position.shape, np.float32))
    force = velocity
    meter = Meter()
    while True:
        noise = rng.standard_normal((SUBSTEPS, *position.shape), np.float32)
        position, velocity, force, kinetic, radius = advance(position, velocity, force, noise, params)
        radius.block_until_ready()
        if meter.count % 50 == 0:
            print(f"step {meter.count} kinetic {float(kinetic):.4f} radius {float(radius):.4f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
