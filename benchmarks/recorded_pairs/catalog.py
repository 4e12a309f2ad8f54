"""The recorded pairs and their labels: what a fair expert would say about each, decided in advance.

Half of the pairs are *tests*: nothing is ever tuned on them. In `FIRST_PAIRS`, every second one is.
Those added later are assigned by lot, before anything is recorded. A test pair that revealed a bug,
which was then fixed, is marked and no longer counts as a test.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Split = Literal["tune", "test"]


@dataclass(frozen=True, slots=True)
class RecordedPair:
    """A program with one performance problem and the same program without it."""

    name: str
    program: str
    """The module beside this one that runs it."""
    framework: str
    cause: str
    """What makes it slow; what is changed in the fixed one."""
    first: tuple[str, ...]
    """Rules of which one should rank first, the most specific one first."""
    still_true: tuple[str, ...] = ()
    """Rules that are right about the fixed one, too: what its change leaves to do. The gradients
    of a small model fill one bucket, so that its all-reduce stays exposed."""
    has_shown_a_bug: bool = False
    """A test pair on which something was mended."""


_MAIN_PROCESS = ("loader-in-main-process", "input-stall")
_HOST_WORK = ("step-gap", "python-overhead")
_TINY = ("many-tiny-operators",)
_SHARED = ("input-shares-cores",)

FIRST_PAIRS = (
    RecordedPair(
        "torch-latency",
        "torch_input",
        "pytorch",
        "16 samples a batch, 3 ms of storage latency each, read in the training process; fixed: "
        "four workers",
        _MAIN_PROCESS,
    ),
    RecordedPair(
        "torch-decode",
        "torch_input",
        "pytorch",
        "images are inflated and scaled in the training process, in each epoch; fixed: they have "
        "been, once",
        (*_MAIN_PROCESS, "host-preprocessing"),
    ),
    RecordedPair(
        "torch-heavy-decode",
        "torch_input",
        "pytorch",
        "the same with larger images, which take longer than the step; fixed: two workers, which "
        "share two cores with the step and do not quite keep up",
        (*_MAIN_PROCESS, "host-preprocessing"),
        still_true=("input-stall",),
    ),
    RecordedPair(
        "torch-tokenize",
        "torch_input",
        "pytorch",
        "texts are tokenized in Python in the training process; fixed: they have been, once",
        (*_MAIN_PROCESS, "host-preprocessing"),
        has_shown_a_bug=True,  # handing over was discounted for a loader in process
    ),
    RecordedPair(
        "torch-collate",
        "torch_input",
        "pytorch",
        "batches are put together number by number, from Python lists; fixed: from arrays",
        (*_MAIN_PROCESS, "host-preprocessing"),
    ),
    RecordedPair(
        "torch-slow-batches",
        "torch_input",
        "pytorch",
        "every fifth batch comes from storage that takes 250 ms, more than one worker's prefetch "
        "covers; fixed: none does",
        ("slow-batch", "input-stall"),
    ),
    RecordedPair(
        "torch-few-workers",
        "torch_input",
        "pytorch",
        "one worker waits for the storage of one sample after the other; fixed: four workers",
        ("input-stall",),
    ),
    RecordedPair(
        "torch-small-files",
        "torch_input",
        "pytorch",
        "each of 32 samples is a file of its own on storage with 1 ms of latency; fixed: one "
        "shard of 32 samples is read at once",
        ("small-file-reads", *_MAIN_PROCESS),
    ),
    RecordedPair(
        "torch-augment",
        "torch_input",
        "pytorch",
        "96 images are augmented one by one with tensor operators in the dataset; fixed: the "
        "batch at once",
        ("host-preprocessing", *_MAIN_PROCESS),
    ),
    RecordedPair(
        "torch-histograms",
        "torch_steps",
        "pytorch",
        "after each step, histograms of all parameters are computed and written to a file; "
        "fixed: every 200 steps",
        ("step-gap",),
    ),
    RecordedPair(
        "torch-checkpoint",
        "torch_steps",
        "pytorch",
        "a checkpoint is saved after each step; fixed: every 200 steps",
        ("step-gap",),
    ),
    RecordedPair(
        "torch-validation",
        "torch_steps",
        "pytorch",
        "after each step the model is validated, in a range named validate; fixed: every 200 steps",
        ("step-gap",),
    ),
    RecordedPair(
        "torch-metrics",
        "torch_steps",
        "pytorch",
        "metrics are counted in Python after each step; fixed: by one tensor operator",
        _HOST_WORK,
    ),
    RecordedPair(
        "torch-progress",
        "torch_steps",
        "pytorch",
        "a progress bar waits 2.5 ms for its terminal after each step; fixed: every 200 steps",
        ("step-gap",),
    ),
    RecordedPair(
        "torch-python-mask",
        "torch_steps",
        "pytorch",
        "the model builds its attention mask in Python loops in each forward pass; fixed: once",
        ("python-overhead",),
    ),
    RecordedPair(
        "torch-compile",
        "torch_compile",
        "pytorch",
        "torch.compile with static shapes meets a new sequence length in each step; fixed: "
        "batches are padded to one length",
        ("recompilation",),
        has_shown_a_bug=True,  # operators that torch.compile traces counted as work
    ),
    RecordedPair(
        "ddp-input",
        "torch_distributed",
        "pytorch",
        "of two ranks (gloo), one takes 40 ms longer to load its batch; fixed: none does",
        ("straggler", *_MAIN_PROCESS),
        still_true=("exposed-communication",),
    ),
    RecordedPair(
        "ddp-accumulate",
        "torch_distributed",
        "pytorch",
        "two ranks (gloo) accumulate four micro-batches and reduce the gradients in each; fixed: "
        "under no_sync but for the last",
        ("redundant-all-reduce", "exposed-communication"),
        still_true=("exposed-communication",),
    ),
    RecordedPair(
        "ddp-buckets",
        "torch_distributed",
        "pytorch",
        "200 layers' gradients are reduced in buckets of one layer each; fixed: 25 MB buckets",
        ("small-messages", "exposed-communication"),
        still_true=("exposed-communication",),
    ),
    RecordedPair(
        "keras-generator",
        "keras_input",
        "tensorflow",
        "samples come from a Python generator with 6 ms of latency each; fixed: four "
        "generators interleaved, and prefetched",
        ("input-shares-cores", "python-fed-input", "input-stall"),
        has_shown_a_bug=True,  # nothing told that input takes the step's cores
    ),
    RecordedPair(
        "keras-transform",
        "keras_input",
        "tensorflow",
        "64 images are transformed by a sequential map in each epoch; fixed: once, and cached",
        (
            "host-preprocessing",
            "tfdata-uncached-source",
            "tfdata-sequential-map",
            "input-stall",
            *_SHARED,
        ),
    ),
    RecordedPair(
        "keras-no-prefetch",
        "keras_input",
        "tensorflow",
        "batches are read with 25 ms of latency, each when it is asked for; fixed: prefetched",
        ("tfdata-no-prefetch", "python-fed-input", "input-stall"),
    ),
    RecordedPair(
        "keras-py-function",
        "keras_input",
        "tensorflow",
        "a Python function decodes each image; fixed: TensorFlow's operators do, in parallel, "
        "and prefetched",
        (
            "python-fed-input",
            "tfdata-sequential-map",
            "host-preprocessing",
            "input-stall",
            *_SHARED,
        ),
        still_true=_SHARED,  # TensorFlow's operators decode on the same cores
    ),
    RecordedPair(
        "keras-callback",
        "keras_steps",
        "tensorflow",
        "a callback writes metrics to slow storage (15 ms) after each batch; fixed: every 200",
        ("step-gap",),
    ),
    RecordedPair(
        "keras-weights",
        "keras_steps",
        "tensorflow",
        "a callback takes all weights and their histograms after each batch; fixed: every 200",
        ("step-gap",),
    ),
    RecordedPair(
        "keras-eager",
        "keras_steps",
        "tensorflow",
        "compiled with run_eagerly=True; fixed: as a graph",
        ("eager-operators", "python-overhead"),
    ),
    RecordedPair(
        "tf-retracing",
        "tf_loops",
        "tensorflow",
        "a tf.function gets the step's number as a Python integer; fixed: as a tensor",
        ("recompilation",),
    ),
    RecordedPair(
        "tf-lengths",
        "tf_loops",
        "tensorflow",
        "a tf.function gets a new sequence length in each step; fixed: padded to one length",
        ("recompilation",),
    ),
    RecordedPair(
        "tf-numpy",
        "tf_loops",
        "tensorflow",
        "each batch is prepared in NumPy between two steps; fixed: by a thread, one batch ahead",
        (*_HOST_WORK, "input-stall"),
    ),
    RecordedPair(
        "jax-lengths",
        "jax_loops",
        "jax",
        "the jitted step meets a batch of a new size in each step; fixed: one size",
        ("recompilation",),
    ),
    RecordedPair(
        "jax-metrics",
        "jax_loops",
        "jax",
        "predictions are read back and counted in Python after each step; fixed: on the device",
        _HOST_WORK,
    ),
    RecordedPair(
        "jax-eager",
        "jax_loops",
        "jax",
        "the update is not jitted: hundreds of operators are dispatched one by one; fixed: jitted",
        ("eager-operators", "python-overhead"),
    ),
    RecordedPair(
        "jax-numpy",
        "jax_loops",
        "jax",
        "each batch is prepared in NumPy between two steps; fixed: they have been, once",
        (*_HOST_WORK, "input-stall"),
    ),
    RecordedPair(
        "jax-logging",
        "jax_loops",
        "jax",
        "the loss is read and written to slow storage (4 ms) after each step; fixed: every 200",
        _HOST_WORK,
    ),
    RecordedPair(
        "jax-all-reduce",
        "jax_sharded",
        "jax",
        "four devices reduce their gradients after each of eight micro-batches; fixed: once",
        ("redundant-all-reduce", "exposed-communication"),
        still_true=("exposed-communication",),
    ),
    RecordedPair(
        "torch-garbage",
        "torch_steps",
        "pytorch",
        "garbage is collected in full after each step; fixed: every 200 steps",
        ("garbage-collection", *_HOST_WORK),
    ),
    RecordedPair(
        "keras-element-map",
        "keras_input",
        "tensorflow",
        "the rows of a table are taken and prepared one by one and then batched; fixed: batch by "
        "batch, and prefetched",
        (
            "tfdata-per-element-map",
            "tfdata-sequential-map",
            "host-preprocessing",
            "input-stall",
            *_SHARED,
        ),
    ),
    RecordedPair(
        "jax-new-jit",
        "jax_loops",
        "jax",
        "each step jits a function of its own making; fixed: one jitted function",
        ("recompilation",),
        has_shown_a_bug=True,  # the first run of a program was taken for a typical one
    ),
    RecordedPair(
        "ddp-metrics",
        "torch_distributed",
        "pytorch",
        "sixty metrics are averaged over two ranks (gloo) one by one after each step; fixed: "
        "all in one tensor",
        ("small-messages", "exposed-communication"),
        still_true=("exposed-communication",),
    ),
    RecordedPair(
        "keras-png",
        "keras_input",
        "tensorflow",
        "64 images are decoded in each epoch; fixed: once, and cached",
        ("tfdata-uncached-source", "host-preprocessing", "input-stall", *_SHARED),
    ),
    RecordedPair(
        "jax-dispatch",
        "jax_loops",
        "jax",
        "a thousand updates of a tiny model are called one by one; fixed: scanned in one program",
        ("single-step-dispatch", "launch-bound", "python-overhead"),
    ),
    RecordedPair(
        "tf-new-function",
        "tf_loops",
        "tensorflow",
        "each step creates its tf.function again; fixed: one tf.function",
        ("recompilation",),
    ),
    RecordedPair(
        "ddp-uneven-batches",
        "torch_distributed",
        "pytorch",
        "of two ranks (gloo), one trains on five of six samples; fixed: on half of them",
        ("straggler",),
        still_true=("exposed-communication",),
    ),
    RecordedPair(
        "tf-eager",
        "tf_loops",
        "tensorflow",
        "a training step of a hundred layers runs eagerly; fixed: as a tf.function",
        ("eager-operators", "python-overhead"),
        has_shown_a_bug=True,  # operator time outside kernels and allocations counted as work
    ),
    RecordedPair(
        "torch-epochs",
        "torch_input",
        "pytorch",
        "epochs of three batches, each of which starts two new workers; fixed: they persist",
        ("slow-batch", "input-stall"),
    ),
    RecordedPair(
        "jax-callback",
        "jax_loops",
        "jax",
        "the compiled step has NumPy clip its inputs; fixed: JAX does",
        ("host-callback", "python-overhead"),
    ),
    RecordedPair(
        "jax-eager-optimizer",
        "jax_loops",
        "jax",
        "Adam is applied to the parameters of forty layers outside of any jit; fixed: jitted",
        ("eager-operators", "python-overhead"),
    ),
    RecordedPair(
        "tf-py-function",
        "tf_loops",
        "tensorflow",
        "the compiled step has NumPy compute a statistic of each weight; fixed: TensorFlow does",
        ("host-callback", "python-overhead"),
    ),
    RecordedPair(
        "torch-sampler",
        "torch_input",
        "pytorch",
        "the sampler adds up a million weights for each batch, in the training process, which has "
        "a worker for the samples; fixed: all batches are drawn before",
        ("host-preprocessing", "input-stall"),
    ),
    RecordedPair(
        "jax-static-number",
        "jax_loops",
        "jax",
        "the jitted step gets its number as a static argument; fixed: as an array",
        ("recompilation",),
    ),
    RecordedPair(
        "keras-evaluation",
        "keras_steps",
        "tensorflow",
        "a callback runs the model on a sample of eight images after each batch; fixed: every 200",
        ("step-gap", "eager-operators", "python-overhead"),
    ),
    RecordedPair(
        "ddp-checkpoint",
        "torch_distributed",
        "pytorch",
        "of two ranks (gloo), the first saves a checkpoint after each step; fixed: every 200 steps",
        ("straggler", "step-gap", "python-overhead"),
        still_true=("exposed-communication",),
    ),
    RecordedPair(
        "jax-checkpoint",
        "jax_loops",
        "jax",
        "all parameters are written to a file after each step; fixed: every 200",
        _HOST_WORK,
    ),
    RecordedPair(
        "tf-checkpoint",
        "tf_loops",
        "tensorflow",
        "a checkpoint is written after each step; fixed: every 200",
        _HOST_WORK,
    ),
    RecordedPair(
        "torch-nested-lists",
        "torch_input",
        "pytorch",
        "samples are kept as nested lists of numbers, in the training process; fixed: as tensors",
        (*_MAIN_PROCESS, "host-preprocessing"),
    ),
)

# Programs on the CPU.
CPU_PAIRS = (
    RecordedPair(
        "torch-single-tensor-optimizer",
        "torch_loops",
        "pytorch",
        "Adam updates 242 parameters one after the other; fixed: in one fused operator",
        ("optimizer-loop", *_TINY),
        still_true=_TINY,  # 121 small layers remain
    ),
    RecordedPair(
        "torch-sample-loop",
        "torch_loops",
        "pytorch",
        "the model is called for each of 64 samples; fixed: for the batch",
        _TINY,
    ),
    RecordedPair(
        "torch-recurrent-loop",
        "torch_loops",
        "pytorch",
        "a recurrent cell is called for each of 80 places of a sequence; fixed: a layer for all",
        _TINY,
    ),
    RecordedPair(
        "torch-parameter-average",
        "torch_loops",
        "pytorch",
        "the moving averages of 242 parameters are updated one by one; fixed: as lists",
        _TINY,
        still_true=_TINY,  # 121 small layers remain
    ),
    RecordedPair(
        "torch-loss-loop",
        "torch_loops",
        "pytorch",
        "the loss is added up box by box; fixed: computed for all boxes at once",
        _TINY,
    ),
    RecordedPair(
        "keras-element-map-ahead",
        "keras_shared_cores",
        "tensorflow",
        "the rows of a table are prepared one by one, ahead of the step, on the cores that the "
        "step uses; fixed: batch by batch",
        (*_SHARED, "tfdata-per-element-map"),
    ),
    RecordedPair(
        "keras-decode-ahead",
        "keras_shared_cores",
        "tensorflow",
        "64 images are decoded in each epoch, ahead of the step, on the cores that the step "
        "uses; fixed: once, and cached",
        (*_SHARED, "tfdata-uncached-source"),
    ),
    RecordedPair(
        "keras-generator-ahead",
        "keras_shared_cores",
        "tensorflow",
        "a Python generator filters images ahead of the step, on the cores that the step uses; "
        "fixed: they have been filtered, and come from memory",
        (*_SHARED, "python-fed-input"),
    ),
    RecordedPair(
        "torch-busy-workers",
        "torch_workers",
        "pytorch",
        "two workers decode images on the cores that the step uses; fixed: they have been "
        "decoded, once",
        _SHARED,
    ),
    RecordedPair(
        "torch-small-files-workers",
        "torch_workers",
        "pytorch",
        "two workers read 48 files for each batch from storage with latency; fixed: one",
        ("small-file-reads", "input-stall"),
        has_shown_a_bug=True,  # workers beside a step with one thread were said to take its core
    ),
)

JAX_PAIRS = (
    RecordedPair(
        "jax-fetch",
        "jax_calls",
        "jax",
        "the loss and all weights are fetched after each step; fixed: every 200",
        ("device-synchronization",),
    ),
    RecordedPair(
        "jax-new-lengths",
        "jax_calls",
        "jax",
        "each batch has a new length, recorded from the first call on without step markers; "
        "fixed: one length",
        ("recompilation",),
    ),
    RecordedPair(
        "jax-tiny-lambdas",
        "jax_calls",
        "jax",
        "151 jitted lambdas correct a small state in each step; fixed: one program does all",
        ("single-step-dispatch", "launch-bound"),
    ),
    RecordedPair(
        "jax-tiny-functions",
        "jax_calls",
        "jax",
        "151 jitted functions correct a small state in each step; fixed: one program does all",
        ("single-step-dispatch", "launch-bound"),
    ),
)

# Keras on the CPU.
KERAS_PAIRS = (
    RecordedPair(
        "keras-small-batches",
        "keras_small",
        "tensorflow",
        "fit calls the step for each batch of 8 rows; fixed: for 50 batches at a time",
        ("single-step-dispatch",),
    ),
    RecordedPair(
        "keras-map-free-cores",
        "keras_maps",
        "tensorflow",
        "a map waits 60 ms for the storage of one batch at a time, while a core idles; fixed: of "
        "four at a time",
        ("tfdata-sequential-map", "python-fed-input", "input-stall"),
    ),
    RecordedPair(
        "keras-map-busy-cores",
        "keras_maps",
        "tensorflow",
        "a map decodes one image at a time, while the step uses all cores, so that more calls at "
        "a time gain nothing; fixed: each image once, and cached",
        (
            *_SHARED,
            "tfdata-uncached-source",
            "host-preprocessing",
            "input-stall",
        ),
    ),
)

PAIRS = (*FIRST_PAIRS, *CPU_PAIRS, *JAX_PAIRS, *KERAS_PAIRS)


def _tests_by_lot(pairs: Iterable[RecordedPair], seed: int) -> frozenset[str]:
    """Half of some pairs, by a draw that was made before they were recorded."""
    names = sorted(pair.name for pair in pairs)
    return frozenset(random.Random(seed).sample(names, len(names) // 2))


_TESTS = (
    frozenset(pair.name for pair in FIRST_PAIRS[1::2])
    | _tests_by_lot(CPU_PAIRS, seed=2026)
    | _tests_by_lot(JAX_PAIRS, seed=2026)
    | _tests_by_lot(KERAS_PAIRS, seed=2026)
)


def split_of(pair: RecordedPair) -> Split:
    """The half that a pair belongs to: a test becomes a tuning pair when it reveals a bug."""
    return "test" if pair.name in _TESTS and not pair.has_shown_a_bug else "tune"


def pair_named(name: str) -> RecordedPair:
    """A pair by name; raises KeyError for an unknown name."""
    return {pair.name: pair for pair in PAIRS}[name]
