"""Diagnose heart valves from phonocardiogram windows, with time warping."""
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import numpy as np
import tensorflow as tf

tf.random.set_seed(0)
LENGTH, CLASSES, BATCH, KNOTS, FRAME = 160, 4, 128, 5, 20


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

def warp(sample):
    """Resamples one window along a smooth random time axis."""
    signal, speed, gain = sample
    rate = tf.repeat(speed, LENGTH // (KNOTS - 1))[:LENGTH]
    position = tf.cumsum(rate) - rate[0]
    position = position / position[-1] * (LENGTH - 1.001)
    left = tf.floor(position)
    index = tf.cast(left, tf.int32)
    part = position - left
    warped = (1 - part) * tf.gather(signal, index) + part * tf.gather(signal, index + 1)
    return gain * warped


@tf.function
def augment(signals, speeds, gains):
    return tf.map_fn(warp, (signals, speeds, gains), fn_output_signature=tf.float32)


def glorot(shape, seed):
    fan = float(np.prod(shape[:-1])) + shape[-1]
    return tf.Variable(tf.random.stateless_normal(shape, (seed, 0)) * np.sqrt(2.0 / fan))


class ValveNet(tf.Module):
    def __init__(self):
        super().__init__()
        self.layers = [glorot((FRAME, 48), 1), glorot((48, 48), 2)]
        self.dense = glorot((2 * 48, CLASSES), 3)
        self.bias = tf.Variable(tf.zeros(CLASSES))

    def __call__(self, x):
        x = tf.reshape(x, (-1, LENGTH // FRAME, FRAME))
        for weight in self.layers:
            x = tf.nn.relu(x @ weight)
        pooled = tf.concat([tf.reduce_mean(x, axis=1), tf.reduce_max(x, axis=1)], axis=-1)
        return pooled @ self.dense + self.bias


def make_step(model, rate):
    @tf.function
    def step(signals, labels):
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(signals))
            loss = tf.reduce_mean(losses)
        variables = model.trainable_variables
        for variable, gradient in zip(variables, tape.gradient(loss, variables)):
            variable.assign_sub(rate * gradient)
        return loss

    return step


def make_sounds(rng, count=3000):
    labels = rng.integers(0, CLASSES, count).astype(np.int32)
    t = np.arange(LENGTH) / LENGTH
    beat = np.exp(-((t - 0.3) / 0.05) ** 2)
    murmur = np.sin(2 * np.pi * (12 + 9 * labels[:, None]) * t) * np.exp(-((t - 0.6) / 0.1) ** 2)
    return (beat + 0.5 * murmur + rng.normal(0, 0.1, (count, LENGTH))).astype(np.float32), labels


def main():
    rng = np.random.default_rng(0)
    sounds, labels = make_sounds(rng)
    step = make_step(ValveNet(), rate=0.05)
    meter = Meter()
    while True:
        pick = rng.integers(0, len(sounds), BATCH)
        speeds = rng.uniform(0.7, 1.4, (BATCH, KNOTS - 1)).astype(np.float32)
        gains = rng.uniform(0.8, 1.2, BATCH).astype(np.float32)
        signals = augment(tf.constant(sounds[pick]), tf.constant(speeds), tf.constant(gains))
        loss = float(step(signals, tf.constant(labels[pick])))
        if meter.count % 50 == 0:
            print(f"step {meter.count} loss {loss:.5f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
