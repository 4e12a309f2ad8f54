"""CNN on random crops of synthetic pictures, Keras on JAX."""
import argparse
import os
import time

os.environ.setdefault("KERAS_BACKEND", "jax")

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


class Crops(keras.utils.PyDataset):
    def __init__(self, images, labels, batch_size, size=24, seed=0):
        super().__init__()
        self.images, self.labels = images, labels
        self.batch_size, self.size = batch_size, size
        self.rng = np.random.default_rng(seed)

    def __len__(self):
        return len(self.images) // self.batch_size

    def __getitem__(self, index):
        rows = slice(index * self.batch_size, (index + 1) * self.batch_size)
        images, s = self.images[rows], self.size
        top = self.rng.integers(0, images.shape[1] - s + 1, len(images))
        left = self.rng.integers(0, images.shape[2] - s + 1, len(images))
        flip = self.rng.random(len(images)) < 0.5
        batch = []
        for i in range(len(images)):
            crop = images[i, top[i]:top[i] + s, left[i]:left[i] + s]
            if flip[i]:
                crop = crop[:, ::-1]
            crop = crop.astype(np.float32) / 255.0
            crop = (crop - crop.mean()) / (crop.std() + 1e-3)
            batch.append(crop)
        return np.stack(batch), self.labels[rows]


def build_model(size):
    return keras.Sequential([
        keras.Input((size, size, 3)),
        layers.Conv2D(8, 3, strides=2, activation="relu"),
        layers.Conv2D(16, 3, strides=2, activation="relu"),
        layers.Flatten(),
        layers.Dense(10),
    ])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=40)
    args = parser.parse_args()
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 25_600)
    images = rng.integers(0, 180, (25_600, 32, 32, 3), dtype=np.uint8)
    images += (7 * labels)[:, None, None, None].astype(np.uint8)
    data = Crops(images, labels, args.batch_size)
    model = build_model(data.size)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    meter = Meter(args.seconds)
    model.fit(data, epochs=100000, verbose=2, callbacks=[Budget(meter)])
    meter.report()


if __name__ == "__main__":
    main()
