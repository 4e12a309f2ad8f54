"""Mixture density regression whose temperature falls during training."""
import argparse
import os
import time

import keras
import numpy as np
import tensorflow as tf
from keras import layers


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

def make_points(count):
    rng = np.random.default_rng(0)
    y = rng.uniform(-1, 1, (count, 4)).astype(np.float32)
    x = (y + 0.3 * np.sin(6 * y) + rng.normal(0, 0.05, y.shape)).astype(np.float32)
    return x, y.sum(axis=1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--components", type=int, default=8)
    parser.add_argument("--anneal-steps", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=40)
    args = parser.parse_args()
    keras.utils.set_random_seed(0)
    x_all, y_all = make_points(65_536)
    k = args.components
    model = keras.Sequential([keras.Input((4,)), layers.Dense(256, "relu"), layers.Dense(3 * k)])
    optimizer = keras.optimizers.SGD(1e-3)
    optimizer.build(model.trainable_variables)

    @tf.function
    def train_step(x, y, temperature):
        with tf.GradientTape() as tape:
            logits, mean, logstd = tf.split(model(x, training=True), 3, axis=-1)
            z = (y[:, None] - mean) * tf.exp(-logstd)
            logp = tf.nn.log_softmax(logits / temperature) - 0.5 * z * z - logstd
            loss = -tf.reduce_mean(tf.reduce_logsumexp(logp, axis=-1))
        grads = tape.gradient(loss, model.trainable_variables)
        grads, _ = tf.clip_by_global_norm(grads, 5.0)
        optimizer.apply_gradients(zip(grads, model.trainable_variables))
        return loss

    meter = Meter(args.seconds)
    rng = np.random.default_rng(1)
    running, step = True, 0
    while running:
        index = rng.integers(0, len(x_all), args.batch_size)
        x, y = tf.constant(x_all[index]), tf.constant(y_all[index])
        temperature = 1.0 + 4.0 * max(0.0, 1 - step / args.anneal_steps)
        loss = train_step(x, y, temperature)
        step += 1
        if step % 200 == 0:
            print(f"step {step} loss {float(loss):.4f} temperature {temperature:.2f}")
        running = meter.step()
    meter.report()


if __name__ == "__main__":
    main()
