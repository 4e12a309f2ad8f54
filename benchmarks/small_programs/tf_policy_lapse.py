"""Fit which insurance policies lapse, portfolio by portfolio, with iteratively reweighted least squares."""
import argparse
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import numpy as np
import tensorflow as tf


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


class Portfolios:
    """Policies of one agency after the other; their customers differ somewhat."""

    def __init__(self, policies, features, seed=0):
        self.rng = np.random.default_rng(seed)
        self.policies, self.features = policies, features
        self.common = self.rng.normal(size=features) / features ** 0.5

    def next(self):
        own = self.common + 0.2 * self.rng.normal(size=self.features) / self.features ** 0.5
        x = self.rng.normal(size=(self.policies, self.features)).astype(np.float32)
        x[:, 0] = 1.0
        lapse = self.rng.random(self.policies) < 1 / (1 + np.exp(-2 * x @ own))
        years = self.rng.uniform(0.2, 1.0, self.policies)
        return tf.constant(x), tf.constant(lapse.astype(np.float32)), tf.constant(years.astype(np.float32))


def deviance(beta, x, y, exposure):
    logits = tf.linalg.matvec(x, beta)
    return 2 * tf.reduce_mean(exposure * tf.nn.sigmoid_cross_entropy_with_logits(y, logits))


@tf.function
def reweighted_step(beta, x, y, exposure, ridge):
    """One step of Newton's method for the penalised logistic likelihood."""
    mean = tf.sigmoid(tf.linalg.matvec(x, beta))
    weight = tf.linalg.diag(exposure * mean * (1 - mean))
    information = tf.transpose(x) @ weight @ x
    information += ridge * tf.eye(tf.shape(x)[1])
    score = tf.linalg.matvec(x, exposure * (y - mean), transpose_a=True) - ridge * beta
    return beta + tf.linalg.solve(information, score[:, None])[:, 0]


def fit(x, y, exposure, iterations, ridge):
    beta = tf.zeros(x.shape[1])
    for _ in range(iterations):
        beta = reweighted_step(beta, x, y, exposure, ridge)
    return beta


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--policies", type=int, default=900)
    parser.add_argument("--features", type=int, default=60)
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--ridge", type=float, default=1.0)
    args = parser.parse_args()
    portfolios = Portfolios(args.policies, args.features)
    ridge = tf.constant(args.ridge)
    meter = Meter()
    while True:
        x, y, exposure = portfolios.next()
        beta = fit(x, y, exposure, args.iterations, ridge)
        value = float(deviance(beta, x, y, exposure))
        if meter.count % 20 == 0:
            print(f"portfolio {meter.count} deviance {value:.4f} norm {float(tf.norm(beta)):.3f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
