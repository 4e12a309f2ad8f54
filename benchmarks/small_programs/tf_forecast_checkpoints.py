"""Forecast household load with causal convolutions."""
import argparse
import os
import tempfile
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

def make_load(hours):
    rng = np.random.default_rng(0)
    t = np.arange(hours)
    base = 1 + 0.5 * np.sin(2 * np.pi * t / 24) + 0.2 * np.sin(2 * np.pi * t / 168)
    return (base + 0.1 * rng.normal(size=hours)).astype(np.float32)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--window", type=int, default=48)
    parser.add_argument("--hidden", type=int, default=96)
    parser.add_argument("--save-every", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=40)
    args = parser.parse_args()
    keras.utils.set_random_seed(0)
    load = make_load(40_000)
    model = keras.Sequential([
        keras.Input((args.window, 1)),
        layers.Conv1D(args.hidden, 5, padding="causal", activation="relu"),
        layers.Conv1D(args.hidden, 5, padding="causal", dilation_rate=4, activation="relu"),
        layers.Flatten(),
        layers.Dense(64, activation="relu"),
        layers.Dense(24),
    ])
    optimizer = keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
    manager = tf.train.CheckpointManager(checkpoint, tempfile.mkdtemp(prefix="forecast"), max_to_keep=3)

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables))
        return loss

    rng = np.random.default_rng(1)
    span = np.arange(args.window + 24)
    meter = Meter(args.seconds)
    running, step = True, 0
    while running:
        rows = load[rng.integers(0, len(load) - len(span), args.batch_size)[:, None] + span]
        loss = train_step(tf.constant(rows[:, : args.window, None]), tf.constant(rows[:, args.window:]))
        step += 1
        if step % args.save_every == 0:
            manager.save(checkpoint_number=step)
        if step % 200 == 0:
            print(f"step {step} loss {float(loss):.4f}")
        running = meter.step()
    meter.report()


if __name__ == "__main__":
    main()
