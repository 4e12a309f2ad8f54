"""Segment reef photographs with a small encoder and decoder."""
import os
import time

os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(0)
SIDE, CLASSES, BATCH = 64, 6, 4


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

def encoder_stage(x, filters):
    x = layers.Conv2D(filters, 3, strides=2, padding="same", activation="relu")(x)
    return layers.Conv2D(filters, 3, padding="same", activation="relu")(x)


def decoder_stage(x, skip, filters):
    """Twice the size, fewer channels, joined with the encoder's features."""
    x = layers.UpSampling2D(2, interpolation="nearest")(x)
    x = layers.Conv2D(filters, 1, activation="relu")(x)
    if skip is not None:
        x = layers.Concatenate()([x, skip])
    return x


def build_model():
    image = keras.Input((SIDE, SIDE, 3))
    first = encoder_stage(image, 16)
    second = encoder_stage(first, 32)
    third = encoder_stage(second, 64)
    x = layers.Conv2D(256, 1, activation="relu")(third)
    x = decoder_stage(x, second, 128)
    x = decoder_stage(x, first, 96)
    x = decoder_stage(x, None, 24)
    return keras.Model(image, layers.Conv2D(CLASSES, 1)(x))


def make_photographs(rng, count=40):
    """Blobs of classes with their own colours."""
    centres = rng.uniform(0, SIDE, (count, CLASSES, 2))
    grid = np.stack(np.meshgrid(np.arange(SIDE), np.arange(SIDE), indexing="ij"), -1)
    distance = ((grid[None, :, :, None] - centres[:, None, None]) ** 2).sum(-1)
    labels = distance.argmin(-1)
    colours = rng.uniform(0, 1, (CLASSES, 3))
    images = colours[labels] + rng.normal(0, 0.2, (count, SIDE, SIDE, 3))
    return images.astype(np.float32), labels.astype(np.int32)


def main():
    rng = np.random.default_rng(0)
    images, labels = make_photographs(rng)
    model = build_model()
    model.compile(
        optimizer=keras.optimizers.SGD(0.05, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    meter = Meter()
    while True:
        pick = rng.integers(0, len(images), BATCH)
        loss = float(model.train_on_batch(images[pick], labels[pick]))
        if meter.count % 20 == 0:
            print(f"step {meter.count} loss {loss:.4f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
