"""Classify bird calls from log-mel spectrograms."""
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


def make_calls(count, samples=16000, rate=16000):
    rng = np.random.default_rng(0)
    label = rng.integers(0, 10, count)
    t = np.arange(samples) / rate
    base = 800 + 400 * label[:, None]
    wave = np.sin(2 * np.pi * (base * t + 150 * np.sin(2 * np.pi * 3 * t)))
    return (wave + rng.normal(0, 0.5, wave.shape)).astype(np.float32), label.astype(np.int32)


MEL = tf.constant(tf.signal.linear_to_mel_weight_matrix(48, 257, 16000, 100.0, 7800.0))


def features(wave, label):
    spectrum = tf.abs(tf.signal.stft(wave, 512, 160, 512))
    return tf.math.log(tf.matmul(spectrum, MEL) + 1e-3), label


def build_model(shape):
    return keras.Sequential([
        keras.Input(shape),
        layers.Normalization(mean=0.0, variance=9.0),
        layers.Conv1D(48, 5, 2, activation="relu"),
        layers.Conv1D(64, 5, 2, activation="relu"),
        layers.Conv1D(64, 3, activation="relu"),
        layers.GlobalMaxPooling1D(),
        layers.Dense(10),
    ])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=40)
    args = parser.parse_args()
    keras.utils.set_random_seed(0)
    wave, label = make_calls(960)
    ds = tf.data.Dataset.from_tensor_slices((wave, label))
    ds = ds.map(features, num_parallel_calls=tf.data.AUTOTUNE)
    ds = ds.shuffle(len(label)).batch(args.batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    model = build_model(ds.element_spec[0].shape[1:])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    meter = Meter(args.seconds)
    model.fit(ds, epochs=100000, verbose=2, callbacks=[Budget(meter)])
    meter.report()


if __name__ == "__main__":
    main()
