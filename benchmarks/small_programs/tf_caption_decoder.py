"""Greedy captions for a stream of synthetic scenes: convolutional encoder, attention decoder."""
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


VOCAB, LENGTH, WIDTH = 800, 14, 96
START, END = 1, 2


def build_encoder():
    inputs = keras.Input((64, 64, 3))
    x = inputs
    for filters in (16, 32, 64):
        x = layers.Conv2D(filters, 3, strides=2, padding="same", activation="relu")(x)
    x = layers.Conv2D(WIDTH, 3, padding="same", activation="relu")(x)
    return keras.Model(inputs, layers.Reshape((64, WIDTH))(x), name="encoder")


def build_decoder():
    features = keras.Input((64, WIDTH))
    tokens = keras.Input((LENGTH,), dtype="int32")
    places = layers.Embedding(LENGTH, WIDTH)(np.arange(LENGTH)[None, :])
    x = layers.Embedding(VOCAB, WIDTH)(tokens) + places
    for _ in range(2):
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, WIDTH // 4)(x, x, use_causal_mask=True))
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, WIDTH // 4)(x, features))
        x = layers.LayerNormalization()(x + layers.Dense(WIDTH)(layers.Dense(2 * WIDTH, activation="relu")(x)))
    return keras.Model([features, tokens], layers.Dense(VOCAB)(x), name="decoder")


class Captioner(tf.Module):
    def __init__(self):
        super().__init__()
        self.encoder = build_encoder()
        self.decoder = build_decoder()

    @tf.function
    def features(self, images):
        return self.encoder(images, training=False)

    @tf.function
    def next_token(self, features, tokens, position):
        logits = self.decoder([features, tokens], training=False)
        return tf.argmax(logits[:, position], axis=-1, output_type=tf.int32)

    def caption(self, images):
        images = tf.convert_to_tensor(images)
        tokens = np.zeros((len(images), LENGTH), np.int32)
        tokens[:, 0] = START
        finished = np.zeros(len(images), bool)
        for position in range(LENGTH - 1):
            features = self.features(images)
            word = self.next_token(features, tf.constant(tokens), tf.constant(position)).numpy()
            tokens[:, position + 1] = np.where(finished, 0, word)
            finished |= word == END
            if finished.all():
                break
        return tokens


def scenes(batch, rng):
    """Coloured rectangles on a gradient."""
    axis = np.linspace(0, 1, 64, dtype="float32")
    while True:
        images = np.tile(axis[None, :, None, None], (batch, 1, 64, 3)) * rng.random((batch, 1, 1, 3), dtype="float32")
        for image in images:
            for _ in range(3):
                r, c = rng.integers(0, 48, 2)
                h, w = rng.integers(6, 16, 2)
                image[r:r + h, c:c + w] = rng.random(3)
        yield images


def main():
    keras.utils.set_random_seed(15)
    captioner = Captioner()
    words = [f"w{k}" for k in range(VOCAB)]
    meter = Meter()
    for number, images in enumerate(scenes(12, np.random.default_rng(15))):
        tokens = captioner.caption(images)
        if number < 3:
            print("caption:", " ".join(words[t] for t in tokens[0, 1:] if t > END))
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
