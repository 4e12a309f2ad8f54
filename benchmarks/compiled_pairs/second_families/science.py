"""Scientific computing."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from compiled_pairs.program import Array, Program, Role

_WIDE = jnp.float32


def neighbors_by_index(role: Role) -> Program:
    """Ten steps of the heat equation on a periodic grid.

    Slow: neighbors are read by index arrays modulo the size. Fixed: by rolls.
    """
    size, steps = 2048, 10

    def diffuse(grid: Any, rate: Any) -> Any:
        places = jnp.arange(size)

        def step(_: Any, u: Any) -> Any:
            if role == "slow":
                after, before = (places + 1) % size, (places - 1) % size
                total = u[after] + u[before] + u[:, after] + u[:, before]
            else:
                total = jnp.roll(u, -1, 0) + jnp.roll(u, 1, 0)
                total = total + jnp.roll(u, -1, 1) + jnp.roll(u, 1, 1)
            return u + rate * (total - 4 * u)

        return jax.lax.fori_loop(0, steps, step, grid)

    return Program(diffuse, (Array((size, size), _WIDE), Array((), _WIDE)))


def vectors_of_three(role: Role) -> Program:
    """A step of 8,192 bodies under gravity.

    Slow: differences of all pairs are vectors, with the three coordinates as the last axis.
    Fixed: the three coordinates are separate arrays of all pairs.
    """
    bodies = 8192

    def move(state: Any, masses: Any) -> Any:
        places, speeds = state
        if role == "slow":
            offsets = places[None, :, :] - places[:, None, :]
            squares = jnp.sum(jnp.square(offsets), axis=-1) + 1e-3
            pulls = masses * squares**-1.5
            change = jnp.sum(offsets * pulls[..., None], axis=1)
        else:
            columns = places.T
            offsets = [column - column[:, None] for column in columns]
            squares = offsets[0] ** 2 + offsets[1] ** 2 + offsets[2] ** 2 + 1e-3
            pulls = masses * squares**-1.5
            change = jnp.stack([jnp.sum(o * pulls, axis=1) for o in offsets], axis=-1)
        speeds = speeds + 0.01 * change
        return places + 0.01 * speeds, speeds

    vectors = Array((bodies, 3), _WIDE)
    return Program(move, ((vectors, vectors), Array((bodies,), _WIDE)))


def conjugate_gradients(role: Role) -> Program:
    """Twenty iterations for Poisson's equation on a grid, without a matrix, healthy."""
    size, iterations = 1024, 20

    def apply(u: Any) -> Any:
        wide = jnp.pad(u, 1)
        around = wide[2:, 1:-1] + wide[:-2, 1:-1] + wide[1:-1, 2:] + wide[1:-1, :-2]
        return 4 * u - around

    def solve(guess: Any, source: Any) -> Any:
        def iterate(_: Any, state: Any) -> Any:
            x, rest, way, square = state
            image = apply(way)
            length = square / jnp.sum(way * image)
            x, rest = x + length * way, rest - length * image
            new = jnp.sum(rest * rest)
            return x, rest, rest + (new / square) * way, new

        rest = source - apply(guess)
        start = (guess, rest, rest, jnp.sum(rest * rest))
        return jax.lax.fori_loop(0, iterations, iterate, start)[0]

    grid = Array((size, size), _WIDE)
    return Program(solve, (grid, grid))
