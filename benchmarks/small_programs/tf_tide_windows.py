"""Forecast the tide at a harbour from the last two days of gauge readings."""
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


def make_gauge(hours, rng):
    """Water level, wind and pressure, hour by hour."""
    t = np.arange(hours)
    level = np.sin(2 * np.pi * t / 12.42) + 0.4 * np.sin(2 * np.pi * t / 24) + 0.2 * np.sin(2 * np.pi * t / 354)
    wind = np.convolve(rng.normal(size=hours + 23), np.ones(24) / 5, "valid")
    pressure = np.convolve(rng.normal(size=hours + 47), np.ones(48) / 7, "valid")
    level = level + 0.2 * wind - 0.1 * pressure + 0.03 * rng.normal(size=hours)
    return np.stack([level, wind, pressure], axis=1).astype(np.float32)


def windowed_dataset(series, past, ahead, batch_size):
    """Windows of the past and the levels that follow, shuffled."""
    size = past + ahead
    dataset = tf.data.Dataset.from_tensor_slices(series)
    dataset = dataset.window(size, shift=1, drop_remainder=True)
    dataset = dataset.flat_map(lambda window: window.batch(size))
    dataset = dataset.shuffle(1000, seed=1).repeat()
    dataset = dataset.map(lambda window: (window[:past], window[past:, 0]))
    return dataset.batch(batch_size).prefetch(1)


class TideModel(tf.Module):
    def __init__(self, past, ahead, hidden, seed=0):
        super().__init__()
        sizes = [past * 3, hidden, hidden, ahead]
        generator = tf.random.Generator.from_seed(seed)
        self.weights = [tf.Variable(generator.normal((m, n)) * (2 / m) ** 0.5) for m, n in zip(sizes, sizes[1:])]
        self.biases = [tf.Variable(tf.zeros(n)) for n in sizes[1:]]

    def __call__(self, x):
        x = tf.reshape(x, (tf.shape(x)[0], -1))
        for weight, bias in zip(self.weights[:-1], self.biases[:-1]):
            x = tf.nn.relu(x @ weight + bias)
        return x @ self.weights[-1] + self.biases[-1]


def make_step(model, lr):
    variables = model.trainable_variables
    velocity = [tf.Variable(tf.zeros_like(v), trainable=False) for v in variables]

    @tf.function
    def step(past, future):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(past) - future) ** 2)
        for v, m, g in zip(variables, velocity, tape.gradient(loss, variables)):
            m.assign(0.9 * m + g)
            v.assign_sub(lr * m)
        return loss

    return step


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--past", type=int, default=48)
    parser.add_argument("--ahead", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.01)
    args = parser.parse_args()
    tf.random.set_seed(0)
    series = make_gauge(8760, np.random.default_rng(0))
    step = make_step(TideModel(args.past, args.ahead, args.hidden), args.lr)
    meter = Meter()
    for past, future in windowed_dataset(series, args.past, args.ahead, args.batch_size):
        loss = float(step(past, future))
        if meter.count % 50 == 0:
            print(f"step {meter.count} loss {loss:.4f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
