"""Soil moisture from spectra, Keras on torch."""
import argparse
import os
import time

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np
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


def make_spectra(count, bands=200):
    rng = np.random.default_rng(0)
    moisture = rng.uniform(0, 1, (count, 1))
    wave = np.linspace(0, 1, bands)
    spectrum = 1 - moisture * np.exp(-((wave - 0.6) / 0.1) ** 2) + rng.normal(0, 0.05, (count, bands))
    return spectrum.astype(np.float32)[..., None], moisture.astype(np.float32)


def build_model(bands):
    return keras.Sequential([
        keras.Input((bands, 1)),
        layers.Conv1D(32, 9, strides=2, activation="relu"),
        layers.Conv1D(64, 7, strides=2, activation="relu"),
        layers.Conv1D(64, 5, strides=2, activation="relu"),
        layers.Flatten(),
        layers.Dense(64, activation="relu"),
        layers.Dense(1),
    ])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=40)
    args = parser.parse_args()
    keras.utils.set_random_seed(0)
    x, y = make_spectra(10_240)
    model = build_model(x.shape[1])
    model.compile(keras.optimizers.AdamW(1e-3), "mse")
    meter = Meter(args.seconds)
    model.fit(x, y, batch_size=args.batch_size, epochs=100000, verbose=2, callbacks=[Budget(meter)])
    meter.report()


if __name__ == "__main__":
    main()
