import statistics
import time

import keras
import numpy as np

model = keras.Sequential([keras.layers.Dense(256, "relu"), keras.layers.Dense(10, "softmax")])
model.compile(optimizer="sgd", loss="sparse_categorical_crossentropy")
ends = []
for step in range(200):
    model.train_on_batch(np.random.rand(64, 128), np.random.randint(0, 10, 64))
    ends.append(time.perf_counter())
print("own step:", statistics.median(b - a for a, b in zip(ends, ends[1:])) * 1e3, "ms")
