"""Fit the hyperparameters of a Gaussian process by gradient descent on the marginal likelihood."""
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

def kernel(params, a, b):
    length = jnp.exp(params["length"])
    a, b = a / length, b / length
    d2 = jnp.sum(a * a, 1)[:, None] + jnp.sum(b * b, 1)[None] - 2 * a @ b.T
    return jnp.exp(params["scale"]) * jnp.exp(-0.5 * jnp.maximum(d2, 0))


def negative_log_likelihood(params, x, y):
    k = kernel(params, x, x) + (jnp.exp(params["noise"]) + 1e-3) * jnp.eye(len(x))
    alpha = jnp.linalg.inv(k) @ y
    logdet = jnp.linalg.slogdet(k)[1]
    return 0.5 * (y @ alpha + logdet + len(x) * jnp.log(2 * jnp.pi)) / len(x)


@jax.jit
def train_step(params, x, y):
    loss, grads = jax.value_and_grad(negative_log_likelihood)(params, x, y)
    return jax.tree.map(lambda p, g: p - 0.02 * g, params, grads), loss


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--points", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=40)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    x = rng.uniform(-3, 3, (args.points, 4))
    y = np.sin(2 * x[:, 0]) + 0.5 * x[:, 1] + 0.1 * rng.normal(size=args.points)
    x, y = jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)
    params = {"length": jnp.zeros(4), "scale": jnp.zeros(()), "noise": jnp.asarray(-2.0)}
    meter = Meter(args.seconds)
    running, step = True, 0
    while running:
        params, loss = train_step(params, x, y)
        step += 1
        if step % 50 == 0:
            print(f"step {step} loss {float(loss):.4f} noise {float(jnp.exp(params['noise'])):.4f}")
        loss.block_until_ready()
        running = meter.step()
    meter.report()


if __name__ == "__main__":
    main()
