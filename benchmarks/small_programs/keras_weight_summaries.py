"""Wide and deep click model, with summaries for the dashboard."""
import argparse
import os
import tempfile
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


class WeightSummaries(keras.callbacks.Callback):
    def __init__(self, folder, every):
        super().__init__()
        self.writer = tf.summary.create_file_writer(folder)
        self.every = every
        self.seen = 0

    def on_train_batch_end(self, batch, logs=None):
        self.seen += 1
        if self.seen % self.every:
            return
        with self.writer.as_default(step=self.seen):
            tf.summary.scalar("loss", logs["loss"])
            for variable in self.model.trainable_variables:
                tf.summary.histogram(variable.path, variable)


def build_model(fields, buckets, dim=16):
    ids = keras.Input((fields,), dtype="int32")
    dense = keras.Input((13,))
    e = layers.Flatten()(layers.Embedding(buckets, dim)(ids))
    h = layers.Concatenate()([e, dense])
    for width in (256, 128, 64):
        h = layers.Dense(width, activation="relu")(h)
    return keras.Model([ids, dense], layers.Dense(1, activation="sigmoid")(h))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--summary-every", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=40)
    args = parser.parse_args()
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    n, fields, buckets = 51_200, 10, 2000
    ids = rng.integers(0, buckets, (n, fields)).astype(np.int32)
    dense = rng.normal(size=(n, 13)).astype(np.float32)
    click = ((ids[:, 0] % 7 < 2) ^ (dense[:, 0] > 1)).astype(np.float32)
    ds = tf.data.Dataset.from_tensor_slices(((ids, dense), click)).batch(args.batch_size, drop_remainder=True).cache().shuffle(100).prefetch(2)
    model = build_model(fields, buckets)
    model.compile(keras.optimizers.Adagrad(0.01), "binary_crossentropy", metrics=["accuracy"])
    meter = Meter(args.seconds)
    folder = tempfile.mkdtemp(prefix="clicks")
    model.fit(ds, epochs=100000, verbose=2, callbacks=[WeightSummaries(folder, args.summary_every), Budget(meter)])
    meter.report()


if __name__ == "__main__":
    main()
