"""Recognise walking patterns from six-channel body sensors (Keras, 1-D convolutions)."""
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers


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


class TimeBudget(keras.callbacks.Callback):
    def __init__(self, meter):
        super().__init__()
        self.meter = meter

    def on_train_batch_end(self, batch, logs=None):
        if not self.meter.step():
            self.model.stop_training = True


PATTERNS = ["walk", "stairs up", "stairs down", "run", "stand", "limp"]
LENGTH, CHANNELS, BATCH = 128, 6, 64


def make_recordings(count, seed=0):
    rng = np.random.default_rng(seed)
    t = np.arange(LENGTH) / 50.0
    labels = rng.integers(0, len(PATTERNS), count)
    base = np.array([1.0, 0.8, 1.2, 2.4, 0.05, 0.9])
    skew = np.array([0.0, 0.3, -0.3, 0.1, 0.0, 0.6])
    signals = np.empty((count, LENGTH, CHANNELS), np.float32)
    for i, k in enumerate(labels):
        rate = base[k] * rng.normal(1, 0.08)
        phase = rng.uniform(0, 2 * np.pi, CHANNELS)
        wave = np.sin(2 * np.pi * rate * t[:, None] + phase)
        wave += skew[k] * np.sin(4 * np.pi * rate * t[:, None] + 2 * phase)
        signals[i] = wave * rng.uniform(0.5, 1.5, CHANNELS) + 0.3 * rng.standard_normal((LENGTH, CHANNELS))
    return signals, labels.astype(np.int32)


def training_pipeline(signals, labels):
    def recordings():
        for i in np.random.permutation(len(signals)):
            yield signals[i], labels[i]

    dataset = tf.data.Dataset.from_generator(
        recordings,
        output_signature=(
            tf.TensorSpec((LENGTH, CHANNELS), tf.float32),
            tf.TensorSpec((), tf.int32),
        ),
    )
    return dataset.batch(BATCH, drop_remainder=True).prefetch(2)


def build_model():
    inputs = keras.Input((LENGTH, CHANNELS))
    x = layers.Normalization(mean=0.0, variance=1.0)(inputs)
    for filters in (24, 32, 48):
        x = layers.Conv1D(filters, 5, strides=2, padding="same", activation="relu")(x)
    x = layers.GlobalAveragePooling1D()(x)
    x = layers.Dropout(0.3)(x)
    outputs = layers.Dense(len(PATTERNS), activation="softmax")(x)
    model = keras.Model(inputs, outputs, name="gait")
    model.compile(
        optimizer=keras.optimizers.Adam(1e-3),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def main():
    keras.utils.set_random_seed(3)
    signals, labels = make_recordings(6000)
    check_x, check_y = make_recordings(500, seed=1)
    train = training_pipeline(signals, labels)
    model = build_model()
    model.summary()
    meter = Meter()
    model.fit(train, epochs=100_000, verbose=0, callbacks=[TimeBudget(meter)])
    loss, accuracy = model.evaluate(check_x, check_y, batch_size=250, verbose=0)
    print(f"held-out loss {loss:.4f} accuracy {accuracy:.3f}")
    meter.report()


if __name__ == "__main__":
    main()
