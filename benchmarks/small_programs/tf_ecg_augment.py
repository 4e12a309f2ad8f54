"""Beat classification on simulated ECG segments with random distortions."""
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

def make_beats(count, length=256):
    rng = np.random.default_rng(0)
    label = rng.integers(0, 5, count)
    t = np.linspace(-1, 1, length)
    peak = np.exp(-((t - 0.1 * label[:, None]) / (0.03 + 0.02 * label[:, None])) ** 2)
    x = peak + rng.normal(0, 0.05, (count, length))
    return x.astype(np.float32)[..., None], label.astype(np.int32)


def distort(x):
    scale = np.random.uniform(0.7, 1.3)
    x = x * scale + np.random.normal(0, 0.1, x.shape)
    shift = np.random.randint(-20, 21)
    x = np.roll(x, shift, axis=0)
    drift = np.sin(np.linspace(0, np.random.uniform(1, 6), len(x)))[:, None]
    return (x + 0.2 * drift).astype(np.float32)


def augment(x, y):
    shape = x.shape
    x = tf.numpy_function(distort, [x], tf.float32)
    x.set_shape(shape)
    return x, y


def build_model(length):
    return keras.Sequential([
        keras.Input((length, 1)),
        layers.Conv1D(24, 7, strides=2, activation="relu"),
        layers.Conv1D(48, 5, strides=2, activation="relu"),
        layers.Conv1D(48, 5, strides=2, activation="relu"),
        layers.GlobalAveragePooling1D(),
        layers.Dense(5),
    ])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=40)
    args = parser.parse_args()
    keras.utils.set_random_seed(0)
    x, y = make_beats(6400)
    ds = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(y))
    ds = ds.map(augment, num_parallel_calls=tf.data.AUTOTUNE)
    ds = ds.batch(args.batch_size, drop_remainder=True).prefetch(2)
    model = build_model(x.shape[1])
    optimizer = keras.optimizers.Adam(1e-3)
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_fn(y, model(x, training=True))
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables))
        return loss

    meter = Meter(args.seconds)
    running, epoch = True, 0
    while running:
        for x, y in ds:
            loss = train_step(x, y)
            running = meter.step()
            if not running:
                break
        epoch += 1
        if epoch % 5 == 0:
            print(f"epoch {epoch} loss {float(loss):.4f}")
    meter.report()


if __name__ == "__main__":
    main()
