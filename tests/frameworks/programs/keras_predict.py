import statistics
import time

import keras
import numpy as np


class Clock(keras.callbacks.Callback):
    ends = []

    def on_predict_batch_end(self, batch, logs=None):
        self.ends.append(time.perf_counter())


model = keras.Sequential(
    [
        keras.layers.Input((32, 32, 3)),
        keras.layers.Conv2D(16, 3),
        keras.layers.Flatten(),
        keras.layers.Dense(10),
    ]
)
model.predict(np.zeros((3200, 32, 32, 3), "float32"), batch_size=16, verbose=0, callbacks=[Clock()])
ends = Clock.ends
print("own step:", statistics.median(b - a for a, b in zip(ends, ends[1:])) * 1e3, "ms")
