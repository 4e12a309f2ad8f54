"""Trains without compiling the step, and records a few steps: train.py DIRECTORY."""

import os
import sys

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np


def main(directory):
    keras.utils.set_random_seed(0)
    hidden = [keras.layers.Dense(64, activation="relu") for _ in range(12)]
    model = keras.Sequential([keras.Input((64,)), *hidden, keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, run_eagerly=True)
    rows = np.random.default_rng(0).normal(size=(40 * 32, 64)).astype(np.float32)
    callback = keras.callbacks.TensorBoard(directory, profile_batch=(10, 20))
    model.fit(rows, np.arange(len(rows)) % 10, batch_size=32, verbose=0, callbacks=[callback])


if __name__ == "__main__":
    main(sys.argv[1])
