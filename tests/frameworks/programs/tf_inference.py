import statistics
import time

import tensorflow as tf

model = tf.keras.Sequential(
    [
        tf.keras.layers.Input((64, 64, 3)),
        tf.keras.layers.Conv2D(16, 3),
        tf.keras.layers.GlobalAveragePooling2D(),
        tf.keras.layers.Dense(5),
    ]
)
ends = []
for step in range(150):
    model(tf.random.normal((8, 64, 64, 3)), training=False).numpy()
    ends.append(time.perf_counter())
print("own step:", statistics.median(b - a for a, b in zip(ends, ends[1:])) * 1e3, "ms")
