"""Galaxy morphology: a small convolutional network."""
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

def init(key, widths=(1, 16, 32, 64), classes=5):
    keys = jax.random.split(key, len(widths))
    convs = [jax.random.normal(k, (3, 3, i, o)) * (2 / (9 * i)) ** 0.5 for k, i, o in zip(keys, widths, widths[1:])]
    return {"convs": convs, "head": jax.random.normal(keys[-1], (widths[-1], classes)) * 0.1}


def loss_fn(params, x, y):
    for w in params["convs"]:
        x = jax.lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = jax.nn.relu(x)
    logits = x.mean((1, 2)) @ params["head"]
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], axis=1))


@jax.jit
def train_step(params, momentum, x, y):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
    params = jax.tree.map(lambda p, m: p - 0.02 * m, params, momentum)
    return params, momentum, loss


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--report", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=40)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 5, 2048)
    axis = np.linspace(-1, 1, 48)
    r2 = axis[:, None] ** 2 * (1 + labels[:, None, None]) + axis[None] ** 2
    images = (np.exp(-4 * r2) + 0.1 * rng.normal(size=r2.shape)).astype(np.float32)[..., None]
    params = init(jax.random.key(0))
    momentum = jax.tree.map(jnp.zeros_like, params)
    meter = Meter(args.seconds)
    running, step, total = True, 0, 0.0
    while running:
        index = rng.integers(0, len(images), args.batch_size)
        params, momentum, loss = train_step(params, momentum, images[index], labels[index])
        total += float(loss)
        step += 1
        if step % args.report == 0:
            print(f"step {step} loss {float(total) / args.report:.4f}")
            total = 0.0
        running = meter.step()
    meter.report()


if __name__ == "__main__":
    main()
