"""Variational autoencoder with a custom loop."""
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

def make_curves(count, length=128):
    rng = np.random.default_rng(3)
    t = np.linspace(0, 1, length)
    f, p, a = rng.uniform(1, 6, (count, 1)), rng.uniform(0, 6, (count, 1)), rng.uniform(0.3, 1, (count, 1))
    return (a * np.sin(2 * np.pi * f * t + p)).astype(np.float32)


class VAE(keras.Model):
    def __init__(self, length, latent=8, hidden=128):
        super().__init__()
        self.encoder = keras.Sequential([layers.Dense(hidden, "gelu"), layers.Dense(hidden, "gelu"), layers.Dense(2 * latent)])
        self.decoder = keras.Sequential([layers.Dense(hidden, "gelu"), layers.Dense(hidden, "gelu"), layers.Dense(length)])

    def call(self, x):
        mean, logvar = tf.split(self.encoder(x), 2, axis=-1)
        z = mean + tf.exp(0.5 * logvar) * tf.random.normal(tf.shape(mean))
        kl = -0.5 * tf.reduce_sum(1 + logvar - tf.square(mean) - tf.exp(logvar), axis=-1)
        return self.decoder(z), kl


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--beta", type=float, default=0.01)
    parser.add_argument("--seconds", type=float, default=40)
    args = parser.parse_args()
    keras.utils.set_random_seed(0)
    curves = make_curves(25_600)
    model = VAE(curves.shape[1])
    model(curves[:2])
    optimizer = keras.optimizers.Adam(1e-3)
    ds = tf.data.Dataset.from_tensor_slices(curves).shuffle(25_600).batch(args.batch_size, drop_remainder=True).prefetch(2)

    def train_step(x):
        with tf.GradientTape() as tape:
            y, kl = model(x)
            error = tf.reduce_sum(tf.square(y - x), axis=-1)
            loss = tf.reduce_mean(error + args.beta * kl)
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables))
        return loss

    meter = Meter(args.seconds)
    running, epoch = True, 0
    while running:
        for x in ds:
            loss = train_step(x)
            running = meter.step()
            if not running:
                break
        epoch += 1
        print(f"epoch {epoch} loss {float(loss):.3f}")
    meter.report()


if __name__ == "__main__":
    main()
