"""Replay a log of fraud checks and score them as they come."""
import argparse
import os
import time

import keras
import numpy as np
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

def build_model(features=64):
    inputs = keras.Input((features,))
    h = layers.Dense(512, activation="relu")(inputs)
    for _ in range(3):
        h = layers.Add()([h, layers.Dense(512, activation="relu")(layers.LayerNormalization()(h))])
    return keras.Model(inputs, layers.Dense(1, activation="sigmoid")(h))


def requests(seed=0, features=64):
    rng = np.random.default_rng(seed)
    while True:
        yield rng.normal(size=(int(rng.choice([64, 128, 256])), features)).astype(np.float32)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--threshold", type=float, default=0.7)
    parser.add_argument("--seconds", type=float, default=40)
    args = parser.parse_args()
    keras.utils.set_random_seed(0)
    model = build_model()
    flagged, seen = 0, 0
    meter = Meter(args.seconds)
    for request in requests():
        score = model.predict(request, batch_size=256, verbose=0)
        flagged += int((score > args.threshold).sum())
        seen += len(request)
        if meter.count % 500 == 499:
            print(f"requests {meter.count + 1} flagged {flagged / seen:.3f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
