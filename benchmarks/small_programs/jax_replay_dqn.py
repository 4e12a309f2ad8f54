"""Q-learning from a large replay buffer of logged transitions."""
import argparse
import os
import time

import jax
import jax.numpy as jnp
import numpy as np


class Meter:
    """Counts steps and says when the time budget is used up."""

    def __init__(self, seconds):
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

def init(key, sizes=(8, 128, 128, 4)):
    keys = jax.random.split(key, len(sizes) - 1)
    return [(jax.random.normal(k, (i, o)) * (2 / i) ** 0.5, jnp.zeros(o)) for k, i, o in zip(keys, sizes, sizes[1:])]


def q_values(params, x):
    for w, b in params[:-1]:
        x = jax.nn.relu(x @ w + b)
    w, b = params[-1]
    return x @ w + b


def make_buffer(size):
    rng = np.random.default_rng(0)
    state = rng.normal(size=(size, 8)).astype(np.float32)
    action = rng.integers(0, 4, size)
    after = (0.9 * state + 0.1 * np.eye(4, 8)[action] + 0.05 * rng.normal(size=state.shape)).astype(np.float32)
    reward = (-(after[:, :2] ** 2).sum(1)).astype(np.float32)
    return {"state": state, "action": action.astype(np.int32), "reward": reward, "after": after}


def sample(buffer, key, batch_size):
    size = buffer["reward"].shape[0]
    index = jax.random.choice(key, size, (batch_size,), replace=False)
    return jax.tree.map(lambda column: column[index], buffer)


def loss_fn(params, target, batch):
    q = q_values(params, batch["state"])
    chosen = jnp.take_along_axis(q, batch["action"][:, None], axis=1)[:, 0]
    goal = batch["reward"] + 0.95 * q_values(target, batch["after"]).max(axis=1)
    return jnp.mean((chosen - goal) ** 2)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--buffer", type=int, default=200_000)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=40)
    args = parser.parse_args()
    buffer = jax.tree.map(jnp.asarray, make_buffer(args.buffer))

    @jax.jit
    def train_step(params, target, buffer, key):
        batch = sample(buffer, key, args.batch_size)
        loss, grads = jax.value_and_grad(loss_fn)(params, target, batch)
        params = jax.tree.map(lambda p, g: p - 1e-3 * g, params, grads)
        target = jax.tree.map(lambda t, p: 0.995 * t + 0.005 * p, target, params)
        return params, target, loss

    key = jax.random.key(0)
    params = init(key)
    target = params
    meter = Meter(args.seconds)
    running, step = True, 0
    while running:
        params, target, loss = train_step(params, target, buffer, jax.random.fold_in(key, step))
        step += 1
        if step % 200 == 0:
            print(f"step {step} loss {float(loss):.4f}")
        running = meter.step()
    meter.report()


if __name__ == "__main__":
    main()
