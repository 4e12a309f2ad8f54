"""Simulated annealing for placing circuit cells on a grid (half-perimeter wire length)."""
import functools
import os
import time

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


SIDE, NETS, PINS = 16, 300, 4
CELLS = SIDE * SIDE
MOVES = 16 * CELLS


def make_netlist(seed=0):
    """Nets prefer cells of the same cluster, so that a good placement exists."""
    rng = np.random.default_rng(seed)
    cluster = rng.integers(0, 12, CELLS)
    nets = np.empty((NETS, PINS), np.int32)
    for k in range(NETS):
        members = np.flatnonzero(cluster == cluster[rng.integers(CELLS)])
        nets[k] = rng.choice(members if rng.random() < 0.85 and len(members) >= PINS else CELLS, PINS, replace=False)
    return jnp.asarray(nets)


def wire_length(slot, nets):
    place = slot[nets]
    row, column = place // SIDE, place % SIDE
    return (row.max(1) - row.min(1) + column.max(1) - column.min(1)).sum().astype(jnp.float32)


@functools.partial(jax.jit, static_argnames=("temperature", "moves"))
def sweep(slot, nets, pairs, chance, temperature, moves=MOVES):
    """`moves` proposed swaps of two cells each, accepted by the Metropolis rule."""

    def move(k, carry):
        slot, cost, accepted = carry
        a, b = pairs[k]
        trial = slot.at[a].set(slot[b]).at[b].set(slot[a])
        trial_cost = wire_length(trial, nets)
        take = chance[k] < jnp.exp((cost - trial_cost) / temperature)
        slot = jnp.where(take, trial, slot)
        return slot, jnp.where(take, trial_cost, cost), accepted + take

    return jax.lax.fori_loop(0, moves, move, (slot, wire_length(slot, nets), 0))


class Schedule:
    """Geometric cooling, reheated when frozen."""

    def __init__(self, start=6.0, stop=0.05, rate=0.96, hold=20):
        self.start, self.stop, self.rate, self.hold = start, stop, rate, hold
        self.temperature, self.count = start, 0

    def advance(self):
        self.count += 1
        if self.count % self.hold == 0:
            self.temperature *= self.rate
            if self.temperature < self.stop:
                self.temperature = self.start


def main():
    nets = make_netlist()
    rng = np.random.default_rng(1)
    slot = jnp.asarray(rng.permutation(CELLS).astype(np.int32))
    schedule = Schedule()
    best = float("inf")
    meter, number = Meter(), 0
    print(f"start {float(wire_length(slot, nets)):.0f}")
    while True:
        pairs, chance = rng.integers(0, CELLS, (MOVES, 2)), rng.random(MOVES, np.float32)
        slot, cost, accepted = sweep(slot, nets, pairs, chance, schedule.temperature)
        best = min(best, float(cost))
        number += 1
        if number % 50 == 0:
            rate = int(accepted) / MOVES
            print(f"sweep {number} temperature {schedule.temperature:.3f} cost {float(cost):.0f} accepted {rate:.2f}")
        schedule.advance()
        if not meter.step():
            break
    print(f"best {best:.0f}")
    meter.report()


if __name__ == "__main__":
    main()
