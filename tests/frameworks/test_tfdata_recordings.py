"""Pipelines that TensorFlow's guides warn of, recorded, and beside each the one that they advise.

Those of maps, prefetching and caches are recorded pairs of `benchmarks/recorded_pairs`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.recording import record

PIPELINES = """
import sys, numpy as np, tensorflow as tf
from pathlib import Path

folder, name, is_advised = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "advised"

def encoded(count, size):
    return [np.full(size, number % 7, np.uint8).tobytes() for number in range(count)]

def decoded(record):
    return tf.cast(tf.io.decode_raw(record, tf.uint8), tf.float32)

def of_files(count, records):
    for number in range(count):
        with tf.io.TFRecordWriter(str(folder / f"{number}.tfrecord")) as file:
            for record in encoded(records, 200_000):
                file.write(record)
    return [str(folder / f"{number}.tfrecord") for number in range(count)]

def late_growth():
    size = 256 * 256 * 3
    image = lambda record: tf.ensure_shape(decoded(record), (size,))
    records = tf.data.Dataset.from_tensor_slices(encoded(32, size))
    records = records.shuffle(512).map(image) if is_advised else records.map(image).shuffle(512)
    return records.repeat().batch(4)

def repeat_before_shuffle():
    rows = tf.data.Dataset.from_tensor_slices(np.ones((256, 64), np.float32))
    rows = rows.shuffle(64).repeat() if is_advised else rows.repeat().shuffle(64)
    return rows.batch(8)

def sequential_interleave():
    names = tf.data.Dataset.from_tensor_slices(of_files(8, 16)).repeat()
    read = lambda name: tf.data.TFRecordDataset(name).map(decoded)
    if is_advised:
        records = names.interleave(read, cycle_length=4, num_parallel_calls=tf.data.AUTOTUNE)
        return records.batch(8).prefetch(2)
    return names.interleave(read, cycle_length=4).batch(8)

def unfused_map_batch():
    numbers = tf.data.Dataset.range(1_000_000)
    made = lambda number: tf.fill((110_592,), tf.cast(number, tf.float32))
    calls = tf.data.AUTOTUNE if is_advised else None
    return numbers.map(made, num_parallel_calls=calls).batch(64, num_parallel_calls=calls)

@tf.function
def step(batch):
    return tf.reduce_sum(batch)

# A pipeline that TensorFlow rewrites by itself warns of nothing.
options = tf.data.Options()
options.experimental_optimization.apply_default_optimizations = False
batches = iter({each.__name__: each for each in (
    late_growth, repeat_before_shuffle, sequential_interleave, unfused_map_batch
)}[name]().with_options(options))
step(next(batches))
tf.profiler.experimental.start(str(folder))
for number in range(8):
    with tf.profiler.experimental.Trace("train", step_num=number, _r=1):
        step(next(batches)).numpy()
tf.profiler.experimental.stop()
"""


@pytest.mark.parametrize(
    ("name", "rule_id"),
    [
        ("late_growth", "tfdata-late-growth"),
        ("repeat_before_shuffle", "tfdata-repeat-before-shuffle"),
        ("sequential_interleave", "tfdata-sequential-interleave"),
        ("unfused_map_batch", "tfdata-unfused-map-batch"),
    ],
)
def test_what_the_guides_warn_of(name: str, rule_id: str, tmp_path: Path) -> None:
    found = {}
    for way in ("warned", "advised"):
        folder = tmp_path / way
        folder.mkdir()
        report = record(PIPELINES, "tensorflow", folder, name, way)
        found[way] = {finding.rule_id for finding in report.findings}
    assert rule_id in found["warned"]
    assert rule_id not in found["advised"]
