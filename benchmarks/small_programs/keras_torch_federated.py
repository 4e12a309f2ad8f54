"""Federated averaging between simulated clinics (Keras on torch)."""
import os
import time

os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy as np
from keras import layers


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


FEATURES, CLASSES = 24, 4
CLIENTS, PER_ROUND, LOCAL_BATCH = 40, 5, 32


def make_clients(seed=31):
    """Every clinic sees its own shifted part of the same problem."""
    rng = np.random.default_rng(seed)
    truth = rng.standard_normal((FEATURES, CLASSES))
    clients = []
    for _ in range(CLIENTS):
        n = int(rng.integers(100, 260))
        shift = 0.5 * rng.standard_normal(FEATURES)
        x = rng.standard_normal((n, FEATURES)) + shift
        y = (x @ truth + rng.gumbel(size=(n, CLASSES))).argmax(1)
        clients.append((x.astype("float32"), y.astype("int64")))
    return clients


def build_model():
    model = keras.Sequential([
        keras.Input((FEATURES,)),
        layers.Dense(128, activation="relu"),
        layers.Dense(128, activation="relu"),
        layers.Dropout(0.1),
        layers.Dense(64, activation="relu"),
        layers.Dense(CLASSES),
    ])
    model.compile(
        optimizer=keras.optimizers.SGD(0.05),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model


def average(results):
    total = sum(n for n, _ in results)
    layers_ = zip(*(weights for _, weights in results))
    return [sum(n / total * w for (n, _), w in zip(results, layer)) for layer in layers_]


class Server:
    def __init__(self, clients):
        self.clients = clients
        self.rng = np.random.default_rng(0)
        self.model = build_model()
        self.weights = self.model.get_weights()

    def train_client(self, number):
        x, y = self.clients[number]
        local = build_model()
        local.set_weights(self.weights)
        for rows in np.array_split(self.rng.permutation(len(x)), max(1, len(x) // LOCAL_BATCH)):
            local.train_on_batch(x[rows], y[rows])
        return len(x), local.get_weights()

    def accuracy(self):
        self.model.set_weights(self.weights)
        hits = total = 0
        for x, y in self.clients[:8]:
            guess = self.model.predict_on_batch(x).argmax(1)
            hits += int((guess == y).sum())
            total += len(y)
        return hits / total


def main():
    keras.utils.set_random_seed(31)
    server = Server(make_clients())
    meter, going, round_ = Meter(), True, 0
    while going:
        results = []
        for number in server.rng.choice(CLIENTS, PER_ROUND, replace=False):
            results.append(server.train_client(number))
            going = meter.step()
            if not going:
                break
        server.weights = average(results)
        round_ += 1
        if round_ % 10 == 0:
            print(f"round {round_} accuracy {server.accuracy():.3f}")
    meter.report()


if __name__ == "__main__":
    main()
