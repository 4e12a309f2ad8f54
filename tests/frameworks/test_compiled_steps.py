"""Findings on real recordings of compiled steps, by JAX and TensorFlow on the CPU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tb_perfadvisor.contract.model import FindingInfo, Report
from tests.support.recording import record

CALLBACK = """
import sys, time, numpy as np, jax, jax.numpy as jnp
from jax.experimental import io_callback

def host(x):
    time.sleep(0.01)
    return np.asarray(x)

@jax.jit
def train(x):
    x = jnp.tanh(x @ x)
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    if sys.argv[2] == "pure_callback":
        x = jax.pure_callback(host, shape, x)
    elif sys.argv[2] == "io_callback":
        x = io_callback(host, shape, x, ordered=True)
    elif sys.argv[2] == "debug_callback":
        jax.debug.callback(host, x)
    return jnp.tanh(x @ x)

x = train(jnp.ones((128, 128))).block_until_ready()
jax.profiler.start_trace(sys.argv[1])
for number in range(6):
    with jax.profiler.StepTraceAnnotation("train", step_num=number):
        x = train(x).block_until_ready()
jax.profiler.stop_trace()
"""
STEPS = """
import sys, jax, jax.numpy as jnp

def step(w, x):
    return w - 0.1 * jax.grad(lambda w: jnp.mean((jnp.tanh(x @ w) - x) ** 2))(w)

one = jax.jit(step)
fifty = jax.jit(lambda w, xs: jax.lax.scan(lambda w, x: (step(w, x), None), w, xs)[0])
xs = jnp.ones((50, 16, 16))

x, w = xs[0], jnp.ones((16, 16))
call, times = {"one": (lambda w: one(w, x), 200), "fifty": (lambda w: fifty(w, xs), 4)}[sys.argv[2]]
call(w).block_until_ready()
jax.profiler.start_trace(sys.argv[1])
for _ in range(times):
    w = call(w)
w.block_until_ready()
jax.profiler.stop_trace()
"""
FUNCTIONS = """
import sys, tensorflow as tf

@tf.function
def train(x):
    return tf.tanh(x @ x)

x = train(tf.ones((128, 128)))
tf.profiler.experimental.start(sys.argv[1])
for _ in range(12):
    x = train(x)
tf.profiler.experimental.stop()
"""
GRAIN = """
import sys, time, grain, jax, jax.numpy as jnp, numpy as np

class Slow(grain.transforms.Map):
    def map(self, number):
        time.sleep(0.005)
        return np.full((64,), number, np.float32)

dataset = grain.MapDataset.range(512).map(Slow()).batch(4)
threads = int(sys.argv[2])
options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=2 * threads)
batches = iter(dataset.to_iter_dataset(options))
train = jax.jit(lambda x: jnp.tanh(x @ x.T))
train(next(batches)).block_until_ready()
traced = jax.profiler.ProfileOptions()
traced.python_tracer_level = int(sys.argv[3])
jax.profiler.start_trace(sys.argv[1], profiler_options=traced)
for number in range(6):
    with jax.profiler.StepTraceAnnotation("train", step_num=number):
        train(next(batches)).block_until_ready()
jax.profiler.stop_trace()
"""
PY_FUNCTION = """
import sys, time, tensorflow as tf

def host(x):
    time.sleep(0.01)
    return x

@tf.function
def train(x):
    x = tf.tanh(x @ x)
    x = tf.ensure_shape(tf.py_function(host, [x], tf.float32), (128, 128))
    return tf.tanh(x @ x)

x = train(tf.ones((128, 128)))
tf.profiler.experimental.start(sys.argv[1])
for number in range(6):
    with tf.profiler.experimental.Trace("train", step_num=number, _r=1):
        x = train(x)
        x.numpy()
tf.profiler.experimental.stop()
"""


def finding(report: Report, rule_id: str) -> FindingInfo:
    """The finding of a rule."""
    return next(finding for finding in report.findings if finding.rule_id == rule_id)


@pytest.mark.parametrize("primitive", ["pure_callback", "io_callback", "debug_callback"])
def test_jax_calls_python_in_the_step(tmp_path: Path, primitive: str) -> None:
    report = record(CALLBACK, "jax", tmp_path, primitive)
    found = finding(report, "host-callback")
    assert f"(1 call per step), mostly {primitive}" in found.summary
    assert found.saving is not None
    # The function sleeps 10 ms, and as much longer as a busy machine lets it.
    assert 9.9e6 < found.saving.expected_ns < report.overview.step_time_ns


def test_jax_without_callbacks_calls_none(tmp_path: Path) -> None:
    report = record(CALLBACK, "jax", tmp_path, "none")
    assert "host-callback" not in {finding.rule_id for finding in report.findings}


def test_tensorflow_calls_python_in_the_step(tmp_path: Path) -> None:
    report = record(PY_FUNCTION, "tensorflow", tmp_path)
    found = finding(report, "host-callback")
    assert found.saving is not None
    assert 9.9e6 < found.saving.expected_ns < report.overview.step_time_ns


def test_short_steps_are_better_dispatched_together(tmp_path: Path) -> None:
    report = record(STEPS, "jax", tmp_path, "one")
    saving = finding(report, "single-step-dispatch").saving
    assert saving is not None
    # Without the profiler, on two quiet cores, a step takes 10.6 us, one of a scan 2.1: 80 % less.
    # On busy cores, the device takes longer, and less is promised.
    assert 0.2 < saving.share_expected < 0.95
    # The host may run ahead of the steps, or not.
    assert report.steps.source in ("repeats of PjitFunction(step)", "runs of jit_step")


def test_steps_in_a_scan_are(tmp_path: Path) -> None:
    report = record(STEPS, "jax", tmp_path, "fifty")
    assert "single-step-dispatch" not in {finding.rule_id for finding in report.findings}


def test_calls_of_a_function_are_steps(tmp_path: Path) -> None:
    report = record(FUNCTIONS, "tensorflow", tmp_path)
    assert report.steps.source == "repeats of EagerExecute: __inference_train"
    assert report.steps.used >= 11


@pytest.mark.parametrize("threads", [0, 1])
@pytest.mark.parametrize("frames", [0, 1])
def test_waiting_for_grain_is_waiting_for_input(tmp_path: Path, threads: int, frames: int) -> None:
    report = record(GRAIN, "grain", tmp_path, str(threads), str(frames))
    assert report.findings[0].rule_id == "input-stall"
    assert "in PrefetchDatasetIterator.__next__" in report.findings[0].summary
    saving = report.findings[0].saving
    assert saving is not None
    # Four samples of 5 ms make a batch. The thread has two batches of the six ready when the first
    # step begins, so that at least three of the five that are used wait: 3 / 5 * 20 = 12 ms.
    assert saving.expected_ns > (11e6 if threads else 18e6)


def test_one_batch_of_grain_comes_late(tmp_path: Path) -> None:
    # Of the samples of 5 ms each one takes 150: the first of the seventh batch, of which step 5
    # is made, as a batch went before the profile.
    late = GRAIN.replace("sleep(0.005)", "sleep(0.15 if number == 24 else 0.005)")
    report = record(late.replace("range(6)", "range(10)"), "grain", tmp_path, "0", "0")
    found = finding(report, "slow-batch")
    assert found.refines == "input-stall"
    # On a busy machine, others come late as well.
    late_steps = re.search(r"up to 1\d\d ms in step ([\d, ]+), against", found.summary)
    assert late_steps is not None
    assert "5" in late_steps[1].split(", ")
    assert found.saving is not None
    # 150 + 3 x 5 ms are 145 more than the others' 20, in nine steps that are used.
    assert 0.85 * 145e6 / 9 < found.saving.expected_ns < 2 * 145e6 / 9
