"""Sentiment of short reviews with a masked convolutional encoder."""
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

MAX_LEN = 400


def make_reviews(count, vocab):
    rng = np.random.default_rng(0)
    length = np.clip(rng.lognormal(3.4, 0.7, count).astype(int), 6, MAX_LEN)
    label = rng.integers(0, 2, count)
    texts = [rng.integers(1 + y * 50, vocab, n).astype(np.int32) for n, y in zip(length, label)]
    return texts, label.astype(np.float32)


class Encoder(keras.Model):
    def __init__(self, vocab, dim=64):
        super().__init__()
        self.embed = layers.Embedding(vocab, dim)
        self.convs = [layers.Conv1D(dim, 5, padding="same", activation="relu") for _ in range(3)]
        self.head = layers.Dense(1)

    def call(self, ids):
        mask = tf.cast(ids > 0, tf.float32)[..., None]
        h = self.embed(ids) * mask
        for conv in self.convs:
            h = (h + conv(h)) * mask
        return self.head(tf.reduce_sum(h, 1) / tf.reduce_sum(mask, 1))[:, 0]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--vocab", type=int, default=5000)
    parser.add_argument("--seconds", type=float, default=40)
    args = parser.parse_args()
    keras.utils.set_random_seed(0)
    texts, label = make_reviews(6400, args.vocab)
    ragged = tf.ragged.constant(texts, dtype=tf.int32)
    ds = tf.data.Dataset.from_tensor_slices((ragged, label))
    ds = ds.map(lambda t, y: (t, y)).cache().shuffle(len(label))
    ds = ds.padded_batch(args.batch_size, padded_shapes=([MAX_LEN], []), drop_remainder=True)
    ds = ds.prefetch(2)
    model = Encoder(args.vocab)
    model(tf.ones((1, 8), tf.int32))
    optimizer = keras.optimizers.Adam(1e-3)

    @tf.function(reduce_retracing=True)
    def train_step(ids, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(y, model(ids)))
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables))
        return loss

    meter = Meter(args.seconds)
    running, epoch = True, 0
    while running:
        for ids, y in ds:
            loss = train_step(ids, y)
            running = meter.step()
            if not running:
                break
        epoch += 1
        print(f"epoch {epoch} loss {float(loss):.4f}")
    meter.report()


if __name__ == "__main__":
    main()
