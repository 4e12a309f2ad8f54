"""Learns formation energies from crystal fingerprints with a residual network (equinox, optax)."""
import os
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

SMOKE = bool(os.environ.get("SMOKE"))
FEATURES, WIDTH, BLOCKS = (16, 16, 2) if SMOKE else (128, 1024, 8)
BATCH, CRYSTALS = (16, 256) if SMOKE else (8192, 200_000)
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


class Block(eqx.Module):
    norm: eqx.nn.LayerNorm
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, key):
        k1, k2 = jax.random.split(key)
        self.norm = eqx.nn.LayerNorm(WIDTH)
        self.up = eqx.nn.Linear(WIDTH, 2 * WIDTH, key=k1)
        self.down = eqx.nn.Linear(2 * WIDTH, WIDTH, key=k2)

    def __call__(self, x):
        return x + self.down(jax.nn.silu(self.up(self.norm(x))))


class Network(eqx.Module):
    first: eqx.nn.Linear
    blocks: list
    norm: eqx.nn.LayerNorm
    last: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key, BLOCKS + 2)
        self.first = eqx.nn.Linear(FEATURES, WIDTH, key=keys[0])
        self.blocks = [Block(k) for k in keys[1:-1]]
        self.norm = eqx.nn.LayerNorm(WIDTH)
        self.last = eqx.nn.Linear(WIDTH, 1, key=keys[-1])

    def __call__(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(self.norm(x))[0]


@jax.jit
def make_data(key):
    """Fingerprints on the device and an energy that depends on them smoothly."""
    k1, k2, k3 = jax.random.split(key, 3)
    x = jax.random.normal(k1, (CRYSTALS, FEATURES))
    w = jax.random.normal(k2, (FEATURES, 8)) / jnp.sqrt(FEATURES)
    y = jnp.sin(x @ w).sum(1) + 0.02 * jax.random.normal(k3, (CRYSTALS,))
    return x, y


@jax.jit
def sample(key, x, y):
    key, sub = jax.random.split(key)
    rows = jax.random.randint(sub, (BATCH,), 0, CRYSTALS)
    return key, x[rows], y[rows]


@eqx.filter_jit
@eqx.filter_value_and_grad
def loss_and_grads(model, x, y):
    error = jax.vmap(model)(x) - y
    return jnp.mean(optax.losses.huber_loss(error, delta=1.0))


def train_step(model, opt_state, optimizer, x, y):
    loss, grads = loss_and_grads(model, x, y)
    updates, opt_state = optimizer.update(grads, opt_state, eqx.filter(model, eqx.is_array))
    model = eqx.apply_updates(model, updates)
    return model, opt_state, loss


def main():
    key = jax.random.key(0)
    x, y = make_data(jax.random.key(1))
    model = Network(key)
    schedule = optax.warmup_cosine_decay_schedule(0.0, 5e-4, 100, 20_000)
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(schedule, weight_decay=1e-4),
    )
    opt_state = optimizer.init(eqx.filter(model, eqx.is_array))

    meter = Meter()
    step, average = 0, None
    while True:
        key, features, energies = sample(key, x, y)
        model, opt_state, loss = train_step(model, opt_state, optimizer, features, energies)
        STATE["loss"] = loss
        step += 1
        if step % 25 == 0:
            average = float(loss) if average is None else 0.8 * average + 0.2 * float(loss)
            print(f"step {step}: loss {float(loss):.5f}, smoothed {average:.5f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
