"""Predict which of thirty wind-turbine alarms will fire in the next hour (multi-label)."""
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import numpy as np
import keras
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


SENSORS, ALARMS, ROWS = 80, 30, 24_000
THRESHOLDS = [round(0.005 * k, 3) for k in range(1, 199)]


class MeterCallback(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.meter = Meter()

    def on_train_batch_end(self, batch, logs=None):
        if not self.meter.step():
            self.model.stop_training = True


class Report(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        precision, recall = np.array(logs["precision"]), np.array(logs["recall"])
        f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-9)
        best = int(f1.argmax())
        print(f"epoch {epoch} loss {logs['loss']:.4f} best F1 {f1[best]:.3f} at threshold {THRESHOLDS[best]:.2f}")


def turbine_log(seed=9):
    rng = np.random.default_rng(seed)
    hidden = rng.standard_normal((ROWS, 12))
    sensors = hidden @ rng.standard_normal((12, SENSORS)) + 0.5 * rng.standard_normal((ROWS, SENSORS))
    drive = np.tanh(hidden @ rng.standard_normal((12, ALARMS))) * 2 - 2.5
    alarms = rng.random((ROWS, ALARMS)) < 1 / (1 + np.exp(-drive))
    return sensors.astype("float32"), alarms.astype("float32")


def alarm_model():
    inputs = keras.Input((SENSORS,))
    x = layers.BatchNormalization()(inputs)
    for width in (256, 256):
        x = layers.Dense(width, activation="relu")(x)
    outputs = layers.Dense(ALARMS, activation="sigmoid")(x)
    model = keras.Model(inputs, outputs)
    model.compile(
        optimizer=keras.optimizers.Adam(learning_rate=1e-3),
        loss="binary_crossentropy",
        metrics=[
            keras.metrics.Precision(thresholds=THRESHOLDS, name="precision"),
            keras.metrics.Recall(thresholds=THRESHOLDS, name="recall"),
        ],
    )
    return model


if __name__ == "__main__":
    keras.utils.set_random_seed(9)
    sensors, alarms = turbine_log()
    model = alarm_model()
    timer = MeterCallback()
    model.fit(sensors, alarms, batch_size=256, epochs=10_000, verbose=0, callbacks=[Report(), timer])
    timer.meter.report()
