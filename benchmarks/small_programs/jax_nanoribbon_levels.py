"""Fit a tight-binding model of carbon nanoribbons to their energy levels."""
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


def ribbon(rng, sites):
    """A piece of a honeycomb lattice with vacancies, cut to a number of sites."""
    rows = int(np.ceil(sites / 20)) + 3
    cells = np.array([(i, j) for i in range(rows) for j in range(11)], dtype=float)
    origin = cells @ np.array([[1.5, np.sqrt(3) / 2], [0.0, np.sqrt(3)]])
    points = np.concatenate([origin, origin + np.array([1.0, 0.0])])
    points = points[rng.permutation(len(points))[:-20]]
    points = points[np.argsort(points[:, 0], kind="stable")][:sites]
    return points + 0.03 * rng.normal(size=points.shape)


def neighbours(points):
    """Distances and which pairs are first, second and third neighbours."""
    distance = np.linalg.norm(points[:, None] - points[None], axis=-1)
    shells = [np.abs(distance - length) < 0.15 for length in (1.0, np.sqrt(3), 2.0)]
    return distance.astype(np.float32), np.stack(shells).astype(np.float32)


def hamiltonian(params, distance, shells):
    """Hopping that decays with the distance, by shell, and an energy of each site by its neighbours."""
    hopping = jnp.einsum("s,sij->ij", params["hopping"], shells)
    hopping = hopping * jnp.exp(-params["decay"] * (distance - 1.0))
    onsite = params["onsite"][0] + params["onsite"][1] * shells[0].sum(axis=1)
    return hopping + jnp.diag(onsite)


def levels(params, distance, shells):
    return jnp.linalg.eigvalsh(hamiltonian(params, distance, shells))


def loss_of(params, distance, shells, observed):
    return jnp.mean((levels(params, distance, shells) - observed) ** 2)


@partial(jax.jit, donate_argnums=(0, 1))
def train_step(params, velocity, distance, shells, observed):
    loss, grads = jax.value_and_grad(loss_of)(params, distance, shells, observed)
    velocity = jax.tree_util.tree_map(lambda v, g: 0.8 * v + g, velocity, grads)
    params = jax.tree_util.tree_map(lambda p, v: p - 0.01 * v, params, velocity)
    return params, velocity, loss


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ribbons", type=int, default=12)
    parser.add_argument("--sites", type=int, default=260)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    true = {"hopping": jnp.array([-2.7, -0.1, -0.2]), "decay": jnp.array(1.5), "onsite": jnp.array([0.1, 0.2])}
    solve = jax.jit(levels)
    examples = []
    for _ in range(args.ribbons):
        distance, shells = map(jnp.asarray, neighbours(ribbon(rng, args.sites)))
        noise = 0.01 * rng.normal(size=args.sites).astype(np.float32)
        examples.append((distance, shells, solve(true, distance, shells) + noise))
    params = {"hopping": jnp.array([-1.5, 0.0, 0.0]), "decay": jnp.array(1.0), "onsite": jnp.zeros(2)}
    velocity = jax.tree_util.tree_map(jnp.zeros_like, params)
    meter = Meter()
    while True:
        example = examples[int(rng.integers(args.ribbons))]
        params, velocity, loss = train_step(params, velocity, *example)
        value = float(loss)
        if meter.count % 50 == 0:
            print(f"step {meter.count} loss {value:.5f}")
        if not meter.step():
            break
    meter.report()
    print("hopping", np.round(np.asarray(params["hopping"]), 3))


if __name__ == "__main__":
    main()
