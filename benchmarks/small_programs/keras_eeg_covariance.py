"""Tell imagined movements apart by the covariance of electrodes: layers on positive definite matrices."""
import os
import time

os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(0)
ELECTRODES, SAMPLES, CLASSES, BATCH = 96, 250, 4, 8


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


def of_eigenvalues(x, function):
    """A function of a symmetric matrix by its eigenvalues."""
    values, vectors = ops.linalg.eigh(x)
    return ops.matmul(vectors * ops.expand_dims(function(values), -2), ops.swapaxes(vectors, -1, -2))


class BiMap(layers.Layer):
    """W^T X W with fewer columns than rows."""

    def __init__(self, size):
        super().__init__()
        self.size = size

    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1], self.size), initializer="orthogonal", name="w")

    def call(self, x):
        return ops.matmul(ops.transpose(self.w), ops.matmul(x, self.w))

    def compute_output_shape(self, shape):
        return shape[0], self.size, self.size


class Rectify(layers.Layer):
    """Eigenvalues not below a threshold."""

    def call(self, x):
        return of_eigenvalues(x, lambda values: ops.maximum(values, 1e-4))

    def compute_output_shape(self, shape):
        return shape


class Logarithm(layers.Layer):
    """To the tangent space at the identity, as a vector."""

    def call(self, x):
        logarithm = of_eigenvalues(x, lambda values: ops.log(ops.maximum(values, 1e-6)))
        return ops.reshape(logarithm, (-1, x.shape[-1] * x.shape[-1]))

    def compute_output_shape(self, shape):
        return shape[0], shape[1] * shape[2]


def build_model():
    covariance = keras.Input((ELECTRODES, ELECTRODES))
    x = BiMap(88)(covariance)
    x = Rectify()(x)
    x = BiMap(80)(x)
    x = Logarithm()(x)
    return keras.Model(covariance, layers.Dense(CLASSES)(x))


def make_trials(rng, count):
    """Sources whose strength depends on the movement, mixed to the electrodes."""
    label = rng.integers(0, CLASSES, count)
    strength = np.exp(0.5 * rng.normal(size=(CLASSES, ELECTRODES)))[label]
    mixing = rng.normal(size=(ELECTRODES, ELECTRODES)) / ELECTRODES ** 0.5
    signal = rng.normal(size=(count, SAMPLES, ELECTRODES)) * strength[:, None]
    signal = signal @ mixing + 0.3 * rng.normal(size=(count, SAMPLES, ELECTRODES))
    return (signal.swapaxes(1, 2) @ signal / SAMPLES).astype(np.float32), label.astype(np.int32)


def main():
    rng = np.random.default_rng(0)
    covariances, labels = make_trials(rng, 300)
    model = build_model()
    model.compile(
        optimizer=keras.optimizers.SGD(0.01),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    meter = Meter()
    while True:
        pick = rng.integers(0, len(labels), BATCH)
        loss = float(model.train_on_batch(covariances[pick], labels[pick]))
        if meter.count % 20 == 0:
            print(f"step {meter.count} loss {loss:.4f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
