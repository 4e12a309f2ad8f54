"""Leaf species from small colour images, with a look at a few preview leaves on the way."""
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import keras
import numpy as np
from keras import layers


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


SPECIES = ["oak", "maple", "birch", "ginkgo", "willow"]
SIZE = 32


def draw_leaves(count, seed):
    rng = np.random.default_rng(seed)
    axis = np.linspace(-1, 1, SIZE)
    y, x = np.meshgrid(axis, axis, indexing="ij")
    angle, radius = np.arctan2(y, x), np.hypot(x, y)
    labels = rng.integers(0, len(SPECIES), count)
    lobes = np.array([7, 5, 1, 2, 3])
    images = np.empty((count, SIZE, SIZE, 3), "float32")
    for i, k in enumerate(labels):
        edge = rng.uniform(0.5, 0.7) * (1 + 0.25 * np.cos(lobes[k] * (angle - rng.uniform(0, 6.28))))
        leaf = (radius < edge)[..., None]
        colour = np.array([0.2, 0.55, 0.15]) + rng.normal(0, 0.08, 3)
        images[i] = np.where(leaf, colour, rng.uniform(0.5, 1.0)) + rng.normal(0, 0.05, (SIZE, SIZE, 3))
    return images, labels


class PreviewLeaves(keras.callbacks.Callback):
    """Follows the prediction for some fixed leaves."""

    def __init__(self, images, labels, every=40):
        super().__init__()
        self.images, self.labels, self.every = images, labels, every
        self.lines = []

    def on_train_batch_end(self, batch, logs=None):
        probabilities = self.model.predict(self.images, batch_size=16, verbose=0)
        truth = probabilities[np.arange(len(self.labels)), self.labels]
        summary = ", ".join(f"{SPECIES[k]} {p:.2f}" for k, p in zip(self.labels, truth))
        if batch % self.every == 0:
            self.lines.append(summary)
            print(f"batch {batch:4d} loss {logs['loss']:.3f} | {summary}")


class StopOnTime(keras.callbacks.Callback):
    def __init__(self, meter):
        super().__init__()
        self.meter = meter

    def on_train_batch_end(self, batch, logs=None):
        if not self.meter.step():
            self.model.stop_training = True


def make_model():
    model = keras.Sequential([
        keras.Input((SIZE, SIZE, 3)),
        layers.Conv2D(24, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(32, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dense(64, activation="relu"),
        layers.Dropout(0.4),
        layers.Dense(len(SPECIES), activation="softmax"),
    ])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def main():
    keras.utils.set_random_seed(12)
    x, y = draw_leaves(3200, seed=12)
    preview_x, preview_y = draw_leaves(8, seed=13)
    model = make_model()
    meter = Meter()
    model.fit(x, y, batch_size=64, epochs=10_000, verbose=0,
              callbacks=[PreviewLeaves(preview_x, preview_y), StopOnTime(meter)])
    meter.report()


if __name__ == "__main__":
    main()
