"""Remedies for tf.data pipelines."""

from __future__ import annotations

from tb_perfadvisor.rules.finding import Remedy
from tb_perfadvisor.signals.workload.parts import Part

BATCH_FIRST = (
    Remedy(
        text="Batch first, and let the function process the whole batch in one call.",
        snippet=(
            "def normalize(batch):  # (batch, height, width, channels)\n"
            "    return tf.cast(batch, tf.float32) / 255.0\n\n"
            "dataset = dataset.batch(batch_size)\n"
            "dataset = dataset.map(normalize, num_parallel_calls=tf.data.AUTOTUNE)"
        ),
        needs=(Part.TFDATA,),
        reference="https://www.tensorflow.org/guide/data_performance#vectorizing_mapping",
    ),
)
"""Map batches instead of elements."""
CACHE = (
    Remedy(
        text="Keep the decoded records in memory after the first epoch. Put random augmentation "
        "after the cache.",
        snippet=(
            "dataset = dataset.map(decode, num_parallel_calls=tf.data.AUTOTUNE).cache()\n"
            "dataset = dataset.repeat()\n"
            "dataset = dataset.map(augment, num_parallel_calls=tf.data.AUTOTUNE)\n"
            "dataset = dataset.batch(batch_size).prefetch(tf.data.AUTOTUNE)"
        ),
        needs=(Part.TFDATA,),
        reference="https://www.tensorflow.org/guide/data_performance#caching",
    ),
)
"""Keep what is the same in each epoch."""
LESS_PYTHON = (
    Remedy(
        text="Read and decode with TensorFlow operations, which run in parallel without Python's "
        "lock.",
        snippet=(
            "def load(path, label):\n"
            "    image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)\n"
            "    return tf.image.resize(image, (224, 224)), label\n\n"
            "dataset = tf.data.Dataset.from_tensor_slices((paths, labels))\n"
            "dataset = dataset.map(load, num_parallel_calls=tf.data.AUTOTUNE)"
        ),
        needs=(Part.TFDATA,),
        reference="https://www.tensorflow.org/guide/data",
    ),
    Remedy(
        text="If it must be Python, let each call make a whole batch, and run several calls at a "
        "time: code that waits or computes in NumPy releases the lock.",
        snippet=(
            "dataset = tf.data.Dataset.range(batches)\n"
            "dataset = dataset.map(\n"
            "    lambda index: tf.numpy_function(load_batch, [index], tf.float32),\n"
            "    num_parallel_calls=8,\n"
            ").prefetch(4)"
        ),
        needs=(Part.TFDATA,),
        reference="https://www.tensorflow.org/api_docs/python/tf/numpy_function",
    ),
)
"""Make input without Python."""
