"""Differentially private SGD on tabular records."""
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

def init(key, sizes=(40, 128, 64, 2)):
    keys = jax.random.split(key, len(sizes) - 1)
    return [{"w": jax.random.normal(k, (i, o)) / i ** 0.5, "b": jnp.zeros(o)} for k, i, o in zip(keys, sizes, sizes[1:])]


def loss_fn(params, x, y):
    for layer in params[:-1]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    logits = x @ params[-1]["w"] + params[-1]["b"]
    return -jax.nn.log_softmax(logits)[y]


def clipped_grad(params, x, y, bound=1.0):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(grads)))
    scale = jnp.minimum(1.0, bound / (norm + 1e-9))
    return loss, jax.tree.map(lambda g: g * scale, grads)


example_grad = jax.jit(clipped_grad)
add = jax.jit(lambda a, b: jax.tree.map(jnp.add, a, b))


def batch_grad(params, x, y):
    total = None
    for i in range(len(x)):
        result = example_grad(params, x[i], y[i])
        total = result if total is None else add(total, result)
    return total


@jax.jit
def apply(params, grads, key, size):
    leaves, tree = jax.tree.flatten(grads)
    keys = jax.random.split(key, len(leaves))
    noisy = [(g + 0.5 * jax.random.normal(k, g.shape)) / size for g, k in zip(leaves, keys)]
    return jax.tree.map(lambda p, g: p - 0.2 * g, params, jax.tree.unflatten(tree, noisy))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=96)
    parser.add_argument("--seconds", type=float, default=40)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    x_all = rng.normal(size=(20_000, 40)).astype(np.float32)
    y_all = (x_all[:, 0] * x_all[:, 1] > 0).astype(np.int32)
    key = jax.random.key(0)
    params = init(key)
    meter = Meter(args.seconds)
    running, step = True, 0
    while running:
        index = rng.integers(0, len(x_all), args.batch_size)
        loss, grads = batch_grad(params, x_all[index], y_all[index])
        params = apply(params, grads, jax.random.fold_in(key, step), args.batch_size)
        step += 1
        if step % 100 == 0:
            print(f"step {step} loss {float(loss) / args.batch_size:.4f}")
        running = meter.step()
    meter.report()


if __name__ == "__main__":
    main()
