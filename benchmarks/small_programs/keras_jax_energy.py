"""Energy of small atomic clusters from their sorted distances (Keras on JAX)."""
import os
import time

os.environ["KERAS_BACKEND"] = "jax"
import keras
import numpy as np


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


ATOMS = 16
SEED = 77


class Budget(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.meter = Meter()

    def on_train_batch_end(self, batch, logs=None):
        if not self.meter.step():
            self.model.stop_training = True


def clusters(count, rng):
    """Random clusters with the Lennard-Jones energy per atom."""
    grid = np.stack(np.meshgrid(*[np.arange(3)] * 3), -1).reshape(-1, 3)
    chosen = np.stack([rng.permutation(len(grid))[:ATOMS] for _ in range(count)])
    place = grid[chosen] * 1.1 + 0.05 * rng.standard_normal((count, ATOMS, 3))
    upper = np.triu_indices(ATOMS, 1)
    distance = np.linalg.norm(place[:, upper[0]] - place[:, upper[1]], axis=-1)
    inverse = distance ** -6
    energy = 4 * (inverse ** 2 - inverse).sum(1) / ATOMS
    return np.sort(1 / distance, axis=1).astype("float32"), energy.astype("float32")


def network(inputs):
    return keras.Sequential([
        keras.Input((inputs,)),
        keras.layers.Rescaling(2.0, offset=-1.0),
        keras.layers.Dense(512, activation="relu"),
        keras.layers.Dense(512, activation="relu"),
        keras.layers.Dense(512, activation="relu"),
        keras.layers.Dense(1),
    ])


def main():
    keras.utils.set_random_seed(SEED)
    x, y = clusters(12_000, np.random.default_rng(SEED))
    y = ((y - y.mean()) / y.std())[:, None]
    model = network(x.shape[1])
    model.compile(optimizer=keras.optimizers.SGD(0.01, momentum=0.9), loss="mse")
    budget = Budget()
    history = model.fit(x, y, batch_size=1000, epochs=10_000, verbose=0, callbacks=[budget])
    print("loss per epoch:", " ".join(f"{v:.3f}" for v in history.history["loss"][:20]))
    budget.meter.report()


if __name__ == "__main__":
    main()
