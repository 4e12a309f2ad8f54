"""Plankton images: small residual CNN."""
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

class Budget(keras.callbacks.Callback):
    def __init__(self, meter):
        super().__init__()
        self.meter = meter

    def on_train_batch_end(self, batch, logs=None):
        if not self.meter.step():
            self.model.stop_training = True


def residual(x, width):
    y = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
    y = layers.Conv2D(width, 3, padding="same")(y)
    if x.shape[-1] != width:
        x = layers.Conv2D(width, 1)(x)
    return layers.Activation("relu")(layers.Add()([x, y]))


def build_model(size, classes):
    inputs = keras.Input((size, size, 1))
    x = layers.Rescaling(1 / 255)(inputs)
    for width in (16, 32, 48):
        x = layers.MaxPooling2D()(residual(x, width))
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(classes, dtype="float32")(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--seconds", type=float, default=40)
    args = parser.parse_args()
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(args.precision)
    rng = np.random.default_rng(0)
    label = rng.integers(0, 12, 1600)
    image = (rng.random((1600, 32, 32, 1)) * 120 + 10 * label[:, None, None, None]).astype(np.float32)
    ds = tf.data.Dataset.from_tensor_slices((image, label)).shuffle(1600).batch(args.batch_size).prefetch(2)
    model = build_model(32, 12)
    model.compile(keras.optimizers.Adam(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    meter = Meter(args.seconds)
    model.fit(ds, epochs=100000, verbose=2, callbacks=[Budget(meter)])
    meter.report()


if __name__ == "__main__":
    main()
