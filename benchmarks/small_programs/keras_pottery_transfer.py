"""Date pottery sherds from photographs: a new head on a network that was trained elsewhere."""
import os
import time

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import keras
import numpy as np
from keras import layers

SIDE, PERIODS, BATCH = 48, 7, 16
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
    """Prints some losses and stops the training in time."""

    def __init__(self):
        super().__init__()
        self.meter = Meter()

    def on_train_batch_end(self, batch, logs=None):
        if self.meter.count % 50 == 0:
            print(f"step {self.meter.count} loss {logs['loss']:.4f}")
        if not self.meter.step():
            self.model.stop_training = True


def build_backbone():
    """The convolutional part; its weights stay as they are."""
    image = keras.Input((SIDE, SIDE, 3))
    x = layers.Rescaling(1 / 127.5, offset=-1)(image)
    for filters in (24, 48, 64):
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        x = layers.MaxPooling2D()(x)
    x = layers.Conv2D(96, 3, padding="same", activation="relu")(x)
    backbone = keras.Model(image, x, name="backbone")
    backbone.trainable = False
    return backbone


def build_head(shape):
    """What is trained: dense layers upon each place, then upon their means."""
    features = keras.Input(shape)
    x = layers.Reshape((shape[0] * shape[1], shape[2]))(features)
    x = layers.Dense(64, activation="relu")(x)
    x = layers.GlobalAveragePooling1D()(x)
    x = layers.Dropout(0.2)(x)
    return keras.Model(features, layers.Dense(PERIODS)(x), name="head")


def make_sherds(rng, count):
    """Bands of ornament whose spacing and colour tell the period."""
    label = rng.integers(0, PERIODS, count)
    y = np.arange(SIDE)[None, :, None, None]
    spacing = (4 + label + rng.normal(0, 0.2, count))[:, None, None, None]
    colour = rng.uniform(60, 200, (PERIODS, 3))[label][:, None, None, :]
    bands = 40 * np.sin(2 * np.pi * y / spacing + rng.uniform(0, 6, (count, 1, 1, 1)))
    images = colour + bands + rng.normal(0, 15, (count, SIDE, SIDE, 3))
    return np.clip(images, 0, 255).astype(np.float32), label.astype(np.int32)


def main():
    rng = np.random.default_rng(0)
    images, labels = make_sherds(rng, 512)
    backbone = build_backbone()
    head = build_head(backbone.output_shape[1:])
    model = keras.Sequential([backbone, head])
    model.compile(
        optimizer=keras.optimizers.Adam(1e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    callback = MeterCallback()
    while not model.stop_training:
        model.fit(images, labels, batch_size=BATCH, epochs=100, verbose=0, callbacks=[callback])
    callback.meter.report()


if __name__ == "__main__":
    main()
