import statistics
import time

import tensorflow as tf

model = tf.keras.Sequential([tf.keras.layers.Dense(64, "relu"), tf.keras.layers.Dense(1)])
optimizer = tf.keras.optimizers.Adam(1e-3)
data = (
    tf.data.Dataset.from_tensor_slices((tf.random.normal((3200, 32)), tf.random.normal((3200, 1))))
    .batch(32)
    .repeat(2)
)
ends = []
for x, y in data:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    ends.append(time.perf_counter())
print("own step:", statistics.median(b - a for a, b in zip(ends, ends[1:])) * 1e3, "ms")
