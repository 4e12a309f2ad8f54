"""What our marks make of real recordings, by TensorFlow, Keras and JAX on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.instrument import keras as instrument
from tests.support.recording import record

KERAS = """
import sys, time, numpy as np, keras, tensorflow as tf
from tb_perfadvisor.instrument.keras import marked

class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.02)

class Profile(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 4:
            tf.profiler.experimental.start(sys.argv[1])
    def on_epoch_end(self, epoch, logs=None):
        tf.profiler.experimental.stop()

x = np.ones((96, 256), np.float32)
model = keras.Sequential([keras.layers.Dense(256) for _ in range(4)])
model.compile(optimizer="sgd", loss="mse")
model.fit(x, x, batch_size=8, verbose=0, validation_data=(x[:8], x[:8]),
          callbacks=marked([Slow(), Profile()]))
"""
JAX = """
import sys, time, jax, jax.numpy as jnp
from tb_perfadvisor.instrument.jax import step, steps

def loader():
    for number in range(6):
        time.sleep(0.02)
        yield jnp.ones((64, 64))

train = jax.jit(lambda x: jnp.tanh(x @ x) / 64.0)
train(jnp.ones((64, 64))).block_until_ready()
jax.profiler.start_trace(sys.argv[1])
for batch in steps(loader(), first=10):
    train(batch).block_until_ready()
with step(0, name="eval"):
    train(batch).block_until_ready()
jax.profiler.stop_trace()
"""


def test_keras_names_its_callbacks_in_the_gaps(tmp_path: Path) -> None:
    report = record(KERAS, "keras", tmp_path)
    assert report.steps.source == "train"
    # Twelve batches; the profile began with the fifth, and what followed the last is not known.
    assert report.steps.used == 7
    gap = next(finding for finding in report.findings if finding.rule_id == "step-gap")
    assert "mostly in Callback: Slow.on_train_batch_end" in gap.summary
    assert gap.saving is not None
    # 20 ms after each.
    assert gap.saving.expected_ns > 0.8 * 20e6


def test_jax_has_steps_and_shows_its_loader(tmp_path: Path) -> None:
    report = record(JAX, "jax", tmp_path)
    assert (report.steps.source, report.steps.used) == ("train", 5)
    stall = report.findings[0]
    assert stall.rule_id == "input-stall"
    assert "in WaitForNextBatch" in stall.summary
    assert stall.saving is not None
    # 20 ms before each of six: after each of the five of which is known what followed them.
    assert 0.8 * 20e6 < stall.saving.expected_ns < (report.steps.mean_ns or 0)


def test_a_backend_without_marks_is_refused() -> None:
    with pytest.raises(UsageError, match="whose profiler has no step markers"):
        instrument._profiler_of("torch")
