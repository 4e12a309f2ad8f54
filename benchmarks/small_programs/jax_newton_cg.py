"""Softmax regression by truncated Newton steps."""
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

def loss_fn(w, x, y, classes):
    logits = x @ w.reshape(x.shape[1], classes)
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], axis=1)
    return -jnp.mean(picked) + 1e-3 * jnp.sum(w * w)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--features", type=int, default=30)
    parser.add_argument("--classes", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=2000)
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=40)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    x_all = rng.normal(size=(20_000, args.features)).astype(np.float32)
    y_all = np.argmax(x_all @ rng.normal(size=(args.features, args.classes)) + rng.gumbel(size=(20_000, args.classes)), axis=1)

    @jax.jit
    def newton_step(w, x, y):
        f = lambda w: loss_fn(w, x, y, args.classes)
        loss, grad = jax.value_and_grad(f)(w)
        hessian = jax.hessian(f)(w)
        product = lambda v: hessian @ v
        direction, _ = jax.scipy.sparse.linalg.cg(product, grad, maxiter=args.iterations)
        return w - 0.3 * direction, loss

    w = jnp.zeros(args.features * args.classes)
    meter = Meter(args.seconds)
    running, step = True, 0
    while running:
        index = rng.integers(0, len(x_all), args.batch_size)
        w, loss = newton_step(w, x_all[index], y_all[index])
        step += 1
        if step % 50 == 0:
            print(f"step {step} loss {float(loss):.4f}")
        loss.block_until_ready()
        running = meter.step()
    meter.report()


if __name__ == "__main__":
    main()
