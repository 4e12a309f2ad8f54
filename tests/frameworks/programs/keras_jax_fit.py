import os

os.environ["KERAS_BACKEND"] = "jax"
import statistics
import time

import keras
import numpy as np


class Clock(keras.callbacks.Callback):
    ends = []

    def on_train_batch_end(self, batch, logs=None):
        self.ends.append(time.perf_counter())


model = keras.Sequential([keras.layers.Dense(128, "relu"), keras.layers.Dense(1)])
model.compile(optimizer="adam", loss="mse")
model.fit(
    np.random.rand(9600, 64), np.random.rand(9600, 1), batch_size=32, verbose=0, callbacks=[Clock()]
)
ends = Clock.ends
print("own step:", statistics.median(b - a for a, b in zip(ends, ends[1:])) * 1e3, "ms")
