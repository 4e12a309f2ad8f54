"""Many reservoirs under random rain: daily water balance, a new release plan every ten days."""
import os
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp


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


RESERVOIRS, PLAN_DAYS, BLOCK = 128, 10, 15


class Site(NamedTuple):
    capacity: jax.Array
    inflow: jax.Array
    demand: jax.Array


class State(NamedTuple):
    level: jax.Array
    plan: jax.Array
    day: jax.Array


def make_sites(key):
    a, b, c = jax.random.split(key, 3)
    capacity = 50 + 100 * jax.random.uniform(a, (RESERVOIRS,))
    inflow = capacity * (0.01 + 0.02 * jax.random.uniform(b, (RESERVOIRS,)))
    demand = inflow * (0.7 + 0.4 * jax.random.uniform(c, (RESERVOIRS,)))
    return Site(capacity, inflow, demand)


def plan_cost(plan, level, site):
    """Deviation from demand, spill and emptiness over the planned days."""
    levels = level + jnp.cumsum(site.inflow - plan)
    spill = jax.nn.softplus(levels - site.capacity)
    empty = jax.nn.softplus(0.2 * site.capacity - levels)
    rough = jnp.square(jnp.diff(plan)).sum()
    return (jnp.square(plan - site.demand) + 0.1 * spill + 0.3 * empty).sum() + 0.05 * rough


def make_plan(level, plan, site):
    def descend(_, p):
        return jnp.maximum(p - 0.02 * jax.grad(plan_cost)(p, level, site), 0.0)

    return jax.lax.fori_loop(0, 40, descend, jnp.full_like(plan, 1.0) * site.demand)


def one_day(state, rain, site):
    place = state.day % PLAN_DAYS
    plan = jax.lax.cond(
        place == 0,
        lambda: make_plan(state.level, state.plan, site),
        lambda: state.plan,
    )
    release = jnp.minimum(plan[place], state.level)
    level = jnp.clip(state.level + site.inflow * rain - release, 0.0, site.capacity)
    shortage = jnp.maximum(site.demand - release, 0.0)
    return State(level, plan, state.day + 1), shortage


@jax.jit
def simulate_block(state, key, site):
    """Simulates BLOCK days for all reservoirs; rain is a gamma multiple of the mean inflow."""
    rain = jnp.exp(0.8 * jax.random.normal(key, (BLOCK, RESERVOIRS)) - 0.32)

    def day(state, rain_today):
        return jax.vmap(one_day)(state, rain_today, site)

    state, shortage = jax.lax.scan(day, state, rain)
    return state, shortage.mean(0)


def main():
    key = jax.random.PRNGKey(3)
    key, site_key = jax.random.split(key)
    sites = make_sites(site_key)
    state = State(
        level=0.6 * sites.capacity,
        plan=jnp.zeros((RESERVOIRS, PLAN_DAYS)),
        day=jnp.zeros(RESERVOIRS, jnp.int32),
    )
    total, blocks = jnp.zeros(RESERVOIRS), 0
    meter = Meter()
    while True:
        key, use = jax.random.split(key)
        state, shortage = simulate_block(state, use, sites)
        total = total + shortage
        blocks += 1
        jax.block_until_ready(total)
        if blocks % 100 == 0:
            mean = float((total / blocks / sites.demand).mean())
            print(f"day {blocks * BLOCK} mean shortage {100 * mean:.2f} % level {float(state.level.mean()):.1f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
