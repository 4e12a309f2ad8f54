"""Shared network for four driving tasks, trained together."""
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

TASKS = {"speed": 1.0, "steer": 2.0, "brake": 0.5, "gap": 1.0}


def build_model(features):
    inputs = keras.Input((features,))
    h = inputs
    for _ in range(4):
        h = layers.Dense(384, activation="relu")(h)
    heads = {task: layers.Dense(1, name=task)(layers.Dense(32, activation="relu")(h)) for task in TASKS}
    return keras.Model(inputs, heads)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=40)
    args = parser.parse_args()
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(25_600, 96)).astype(np.float32)
    targets = {task: np.tanh(x @ rng.normal(size=(96, 1)) * 0.2).astype(np.float32) for task in TASKS}
    ds = tf.data.Dataset.from_tensor_slices((x, targets)).batch(args.batch_size, drop_remainder=True).cache().shuffle(100).prefetch(2)
    model = build_model(96)
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    optimizer.build(model.trainable_variables)

    @tf.function
    def train_step(x, y):
        variables = model.trainable_variables
        with tf.GradientTape(persistent=True) as tape:
            out = model(x, training=True)
            losses = {task: weight * tf.reduce_mean(tf.square(out[task] - y[task])) for task, weight in TASKS.items()}
            total = tf.add_n(list(losses.values()))
        parts = [tape.gradient(loss, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO) for loss in losses.values()]
        grads = [tf.add_n(list(g)) for g in zip(*parts)]
        optimizer.apply_gradients(zip(grads, variables))
        return total

    meter = Meter(args.seconds)
    running, epoch = True, 0
    while running:
        for x, y in ds:
            loss = train_step(x, y)
            running = meter.step()
            if not running:
                break
        epoch += 1
        print(f"epoch {epoch} loss {float(loss):.4f}")
    meter.report()


if __name__ == "__main__":
    main()
