"""Evaluate a trained classifier on test batches and collect a confusion matrix."""
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

def init(key, classes):
    shapes = [(3, 3, 1, 16), (3, 3, 16, 32), (32 * 49, classes)]
    return [jax.random.normal(k, s) * (2 / np.prod(s[:-1])) ** 0.5 for k, s in zip(jax.random.split(key, 3), shapes)]


@jax.jit
def predict(params, x):
    for w in params[:2]:
        x = jax.lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = jax.nn.relu(x)
    return jnp.argmax(x.reshape(len(x), -1) @ params[2], axis=1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=40)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    images = rng.normal(size=(5120, 28, 28, 1)).astype(np.float32)
    labels = jnp.asarray(rng.integers(0, args.classes, 5120))
    params = init(jax.random.key(0), args.classes)
    meter = Meter(args.seconds)
    running, rounds = True, 0
    while running:
        confusion = np.zeros((args.classes, args.classes), int)
        for start in range(0, len(images), args.batch_size):
            rows = slice(start, start + args.batch_size)
            guess = predict(params, images[rows])
            truth = labels[rows]
            for i in range(len(guess)):
                confusion[int(truth[i]), int(guess[i])] += 1
            running = meter.step()
            if not running:
                break
        rounds += 1
        print(f"round {rounds} accuracy {np.trace(confusion) / confusion.sum():.4f}")
    meter.report()


if __name__ == "__main__":
    main()
