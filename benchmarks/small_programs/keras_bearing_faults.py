"""Classify bearing faults from vibration windows with Keras."""
import os
import time

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(0)
LENGTH, CLASSES, BATCH = 1024, 5, 32


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

def build_model():
    signal = keras.Input((LENGTH, 1))
    x = layers.Conv1D(24, 16, strides=4, padding="same", activation="relu")(signal)
    for filters in (32, 64):
        x = layers.Conv1D(filters, 5, strides=2, padding="same", use_bias=False)(x)
        x = layers.BatchNormalization()(x)
        x = layers.ReLU()(x)
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(signal, layers.Dense(CLASSES)(x))


def make_vibrations(rng, count=960):
    labels = rng.integers(0, CLASSES, count)
    t = np.arange(LENGTH) / LENGTH
    shaft = np.sin(2 * np.pi * (25 * t + rng.uniform(0, 1, (count, 1))))
    knocks = np.maximum(np.sin(2 * np.pi * (40 + 22 * labels[:, None]) * t + rng.uniform(0, 6, (count, 1))), 0) ** 8
    signal = shaft + 0.8 * knocks + rng.normal(0, 0.4, (count, LENGTH))
    return signal[:, :, None].astype(np.float32), labels.astype(np.int32)


class StepClock(keras.callbacks.Callback):
    """Ends training when the time is used up."""

    def __init__(self, meter):
        super().__init__()
        self.meter = meter

    def on_train_batch_end(self, batch, logs=None):
        if not self.meter.step():
            self.model.stop_training = True


class EpochLines(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print(f"epoch {epoch} loss {logs['loss']:.4f}")


def main():
    x, y = make_vibrations(np.random.default_rng(0))
    model = build_model()
    model.compile(
        optimizer=keras.optimizers.Adam(1e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    meter = Meter()
    model.fit(x, y, batch_size=BATCH, epochs=10_000, verbose=0, callbacks=[StepClock(meter), EpochLines()])
    meter.report()


if __name__ == "__main__":
    main()
