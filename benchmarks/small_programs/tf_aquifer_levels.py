"""Learn the level of groundwater over place and time with a network of sine features and gates."""
import argparse
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import numpy as np
import tensorflow as tf

tf.debugging.enable_check_numerics()


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


class Gated(tf.Module):
    """A dense layer with a gate and a residual connection."""

    def __init__(self, width, generator):
        super().__init__()
        self.value = tf.Variable(generator.normal((width, width)) / width ** 0.5)
        self.gate = tf.Variable(generator.normal((width, width)) / width ** 0.5)
        self.bias = tf.Variable(tf.zeros(width))
        self.scale = tf.Variable(tf.ones(width))

    def __call__(self, x):
        mean = tf.reduce_mean(x, axis=1, keepdims=True)
        variance = tf.reduce_mean((x - mean) ** 2, axis=1, keepdims=True)
        h = (x - mean) * tf.math.rsqrt(variance + 1e-5) * self.scale
        return x + tf.tanh(h @ self.value + self.bias) * tf.sigmoid(h @ self.gate)


class LevelModel(tf.Module):
    def __init__(self, width, depth, seed=0):
        super().__init__()
        generator = tf.random.Generator.from_seed(seed)
        self.frequencies = tf.constant(generator.normal((3, width // 2)).numpy())
        self.layers = [Gated(width, generator) for _ in range(depth)]
        self.out = tf.Variable(generator.normal((width, 1)) / width ** 0.5)

    def __call__(self, points):
        angle = points @ self.frequencies
        x = tf.concat([tf.sin(angle), tf.cos(angle)], axis=1)
        for layer in self.layers:
            x = layer(x)
        return (x @ self.out)[:, 0]


def make_wells(rng, count):
    points = rng.uniform(-1, 1, (count, 3)).astype(np.float32)
    x, y, t = points.T
    level = np.sin(3 * x + t) * np.cos(2 * y) + 0.3 * np.exp(-4 * (x ** 2 + y ** 2)) * np.sin(5 * t)
    return points, (level + 0.05 * rng.normal(size=count)).astype(np.float32)


def make_step(model, lr):
    variables = model.trainable_variables
    velocity = [tf.Variable(tf.zeros_like(v), trainable=False) for v in variables]

    @tf.function
    def step(points, levels):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(points) - levels) ** 2)
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, variables), 1.0)
        for v, m, g in zip(variables, velocity, gradients):
            m.assign(0.9 * m + g)
            v.assign_sub(lr * m)
        return loss

    return step


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--lr", type=float, default=0.01)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    points, levels = make_wells(rng, 20_000)
    step = make_step(LevelModel(args.width, args.depth), args.lr)
    meter = Meter()
    while True:
        pick = rng.integers(0, len(points), args.batch_size)
        loss = float(step(tf.constant(points[pick]), tf.constant(levels[pick])))
        if meter.count % 100 == 0:
            print(f"step {meter.count} loss {loss:.4f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
