"""Recognise fungi in photographs; a callback follows the accuracy on photographs that were held out."""
import os
import time

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import keras
import numpy as np
from keras import layers

SIDE, GENERA, BATCH = 32, 9, 32
keras.utils.set_random_seed(0)


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


class MeterCallback(keras.callbacks.Callback):
    """Stops the training when the time is over."""

    def __init__(self):
        super().__init__()
        self.meter = Meter()

    def on_train_batch_end(self, batch, logs=None):
        if not self.meter.step():
            self.model.stop_training = True


class HeldOut(keras.callbacks.Callback):
    """Accuracy, and which genera are confused most, on photographs held out."""

    def __init__(self, images, labels, every=50):
        super().__init__()
        self.images, self.labels, self.every = images, labels, every
        self.seen = 0

    def predicted(self):
        genera = []
        for image in self.images:
            logits = self.model(image[None], training=False)
            genera.append(int(np.argmax(logits[0])))
        return np.array(genera)

    def on_train_batch_end(self, batch, logs=None):
        self.seen += 1
        if self.seen % self.every == 0:
            guess = self.predicted()
            wrong = guess != self.labels
            pair = (0, 0)
            if wrong.any():
                pairs, counts = np.unique(np.stack([self.labels[wrong], guess[wrong]]), axis=1, return_counts=True)
                pair = tuple(int(v) for v in pairs[:, counts.argmax()])
            print(f"step {self.seen} loss {logs['loss']:.4f} accuracy {1 - wrong.mean():.3f} confused {pair}")


def build_model():
    image = keras.Input((SIDE, SIDE, 3))
    x = image
    for filters in (16, 32):
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        x = layers.MaxPooling2D()(x)
    x = layers.Conv2D(48, 3, padding="same", activation="relu")(x)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(image, layers.Dense(GENERA)(x))


def make_photographs(rng, count):
    """A cap of a colour and a width upon a stem."""
    label = rng.integers(0, GENERA, count)
    y, x = np.mgrid[0:SIDE, 0:SIDE]
    width = (5 + label % 3 * 3 + rng.normal(0, 0.5, count))[:, None, None]
    cap = ((x - 16) / width) ** 2 + ((y - 10) / 6) ** 2 < 1
    stem = (np.abs(x - 16) < 2) & (y > 12)
    hue = np.array([[0.8, 0.2, 0.2], [0.7, 0.6, 0.3], [0.4, 0.3, 0.2]])[label // 3]
    images = cap[..., None] * hue[:, None, None, :] + 0.8 * (stem & ~cap)[..., None]
    return (images + rng.normal(0, 0.25, images.shape)).astype(np.float32), label.astype(np.int32)


def main():
    images, labels = make_photographs(np.random.default_rng(0), 2120)
    model = build_model()
    model.compile(
        optimizer=keras.optimizers.Adam(1e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    clock = MeterCallback()
    held_out = HeldOut(images[2000:], labels[2000:])
    while not model.stop_training:
        model.fit(images[:2000], labels[:2000], batch_size=BATCH, epochs=1000, verbose=0,
                  callbacks=[held_out, clock])
    clock.meter.report()


if __name__ == "__main__":
    main()
