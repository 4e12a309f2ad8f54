"""River stage twelve hours ahead from rain and upstream gauges (TensorFlow, own training loop)."""
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


def simulate(hours=30_000, gauges=4, seed=6):
    rng = np.random.default_rng(seed)
    rain = rng.gamma(0.08, 4.0, (hours, gauges)).astype(np.float32)
    stage = np.zeros((hours, gauges), np.float32)
    decay = np.linspace(0.93, 0.985, gauges)
    for t in range(1, hours):
        inflow = np.concatenate([[0.0], stage[t - 1, :-1]]) * 0.02
        stage[t] = decay * stage[t - 1] + 0.1 * rain[t] + inflow
    return rain, stage + 0.01 * rng.standard_normal(stage.shape).astype(np.float32)


def windows(rain, stage, history, ahead):
    both = np.concatenate([rain, stage], axis=1)
    both = (both - both.mean(0)) / both.std(0)
    view = np.lib.stride_tricks.sliding_window_view(both, history, axis=0)
    x = view[: len(both) - history - ahead].reshape(-1, history * both.shape[1])
    y = both[history + ahead - 1: history + ahead - 1 + len(x), -1:]
    return np.ascontiguousarray(x, np.float32), np.ascontiguousarray(y, np.float32)


class Net(tf.Module):
    def __init__(self, sizes):
        super().__init__()
        self.weights, self.biases = [], []
        for a, b in zip(sizes[:-1], sizes[1:]):
            self.weights.append(tf.Variable(tf.random.normal((a, b), stddev=(2 / a) ** 0.5)))
            self.biases.append(tf.Variable(tf.zeros(b)))

    def __call__(self, x):
        for w, b in zip(self.weights[:-1], self.biases[:-1]):
            x = tf.nn.relu(tf.nn.bias_add(tf.matmul(x, w), b))
        return tf.nn.bias_add(tf.matmul(x, self.weights[-1]), self.biases[-1])


class Trainer:
    def __init__(self, sizes, lr):
        self.net = Net(sizes)
        self.lr = lr
        self.params = list(self.net.trainable_variables)
        self.velocity = [tf.Variable(tf.zeros_like(p)) for p in self.params]

    @tf.function
    def step(self, x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.net(x) - y))
        for p, v, g in zip(self.params, self.velocity, tape.gradient(loss, self.params)):
            v.assign(0.9 * v + g)
            p.assign_sub(self.lr * v)
        return loss

    @tf.function
    def skill(self, x, y):
        error = tf.reduce_mean(tf.square(self.net(x) - y))
        return 1.0 - error / tf.math.reduce_variance(y)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--history", type=int, default=48)
    parser.add_argument("--ahead", type=int, default=12)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--batch", type=int, default=512)
    args = parser.parse_args()
    tf.random.set_seed(6)
    x, y = windows(*simulate(), args.history, args.ahead)
    cut = int(0.9 * len(x))
    trainer = Trainer([x.shape[1], args.width, args.width, args.width, 1], lr=1e-3)
    rng = np.random.default_rng(1)
    meter, going, epoch = Meter(), True, 0
    while going:
        order = rng.permutation(cut)
        for first in range(0, cut - args.batch + 1, args.batch):
            rows = order[first:first + args.batch]
            loss = trainer.step(tf.constant(x[rows]), tf.constant(y[rows]))
            going = meter.step()
            if not going:
                break
        epoch += 1
        if going:
            print(f"epoch {epoch} loss {float(loss):.4f} skill {float(trainer.skill(x[cut:], y[cut:])):.3f}")
    meter.report()


if __name__ == "__main__":
    main()
