"""Forecast household electricity from serialized smart meter records."""
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import numpy as np
import tensorflow as tf

tf.random.set_seed(0)
HOURS, STATIC, BATCH = 96, 6, 64


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

FEATURES = {
    "usage": tf.io.FixedLenFeature([HOURS], tf.float32),
    "temperature": tf.io.FixedLenFeature([HOURS], tf.float32),
    "household": tf.io.FixedLenFeature([STATIC], tf.float32),
    "tariff": tf.io.FixedLenFeature([], tf.int64),
    "next_day": tf.io.FixedLenFeature([24], tf.float32),
}


def make_records(rng, count=2500):
    """What the meters upload: one serialized Example per household and day."""
    hour = np.arange(HOURS + 24)
    records = []
    for _ in range(count):
        size, phase, tariff = rng.gamma(2.0, 0.5), rng.normal(18, 2), int(rng.integers(0, 4))
        load = size * (1 + np.cos(2 * np.pi * (hour - phase) / 24)) + 0.1 * rng.normal(size=len(hour))
        values = {
            "usage": load[:HOURS], "temperature": 10 + 5 * rng.normal(size=HOURS),
            "household": np.r_[size, rng.normal(size=STATIC - 1)], "next_day": load[HOURS:],
        }
        feature = {k: tf.train.Feature(float_list=tf.train.FloatList(value=v)) for k, v in values.items()}
        feature["tariff"] = tf.train.Feature(int64_list=tf.train.Int64List(value=[tariff]))
        records.append(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
    return records


def parse(record):
    fields = tf.io.parse_single_example(record, FEATURES)
    usage = tf.math.log1p(tf.nn.relu(fields["usage"]))
    temperature = (fields["temperature"] - 10.0) / 5.0
    tariff = tf.one_hot(fields["tariff"], 4)
    inputs = tf.concat([usage, temperature, fields["household"], tariff], axis=-1)
    return inputs, tf.math.log1p(tf.nn.relu(fields["next_day"]))


def make_dataset(records):
    data = tf.data.Dataset.from_tensor_slices(records).repeat()
    data = data.shuffle(1000, seed=0).map(parse).batch(BATCH, drop_remainder=True)
    return data.prefetch(2)


def build_model():
    return tf.keras.Sequential([
        tf.keras.Input((2 * HOURS + STATIC + 4,)),
        tf.keras.layers.Dense(128, activation="relu"),
        tf.keras.layers.Dense(64, activation="relu"),
        tf.keras.layers.Dense(24),
    ])


def main():
    tf.keras.utils.set_random_seed(0)
    data = make_dataset(make_records(np.random.default_rng(0)))
    model = build_model()
    rate = 0.05

    @tf.function
    def step(inputs, target):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.abs(model(inputs, training=True) - target))
        variables = model.trainable_variables
        for variable, gradient in zip(variables, tape.gradient(loss, variables)):
            variable.assign_sub(rate * gradient)
        return loss

    meter = Meter()
    for inputs, target in data:
        loss = float(step(inputs, target))
        if meter.count % 50 == 0:
            print(f"step {meter.count} loss {loss:.5f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
