"""What slows each program down, decided before any of them was recorded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostProgram:
    """A program, and its label."""

    name: str
    """Also the function that makes its step, in `jax_programs`, `keras_programs` or
    `keras_on_jax`."""
    module: str
    cause: str
    first: tuple[str, ...] = ()
    """Rules of which one should rank first; empty where nothing is to fix."""


_STALL = ("input-stall", "python-fed-input", "host-preprocessing", "input-shares-cores")
_CALLS = ("single-step-dispatch", "launch-bound", "many-tiny-operators", "eager-operators")
_JAX, _KERAS, _KERAS_ON_JAX = "jax_programs", "keras_programs", "keras_on_jax"

PROGRAMS = (
    HostProgram(
        "arrays_of_numpy",
        _JAX,
        "32 MB of NumPy arrays in each call; fixed: put on the device once",
        ("host-arguments", "exposed-copies", "redundant-copies"),
    ),
    HostProgram(
        "doubles", _JAX, "float64; fixed: float32", ("double-precision", "double-precision-program")
    ),
    HostProgram(
        "fetched_outputs",
        _JAX,
        "all outputs are fetched and ranked by NumPy; fixed: on the device",
        ("step-gap", "device-synchronization", "python-overhead"),
    ),
    HostProgram(
        "called_back",
        _JAX,
        "statistics by a callback inside the step; fixed: computed in it",
        ("host-callback",),
    ),
    HostProgram(
        "words_one_by_one", _JAX, "a call for each word; fixed: a loop in the program", _CALLS
    ),
    HostProgram(
        "samples_one_by_one", _JAX, "a call for each sample; fixed: one for the batch", _CALLS
    ),
    HostProgram("new_shapes", _JAX, "a new shape in each step; fixed: padded", ("recompilation",)),
    HostProgram(
        "updates_outside",
        _JAX,
        "an optimizer outside of jit; fixed: inside",
        (
            "eager-operators",
            "launch-bound",
            "many-tiny-operators",
            "unfused-optimizer",
            "optimizer-loop",
        ),
    ),
    HostProgram(
        "made_by_numpy",
        _JAX,
        "batches are augmented by NumPy between steps; fixed: ahead",
        (*_STALL, "step-gap"),
    ),
    HostProgram("products", _JAX, "large products in one call"),
    HostProgram(
        "sorted_in_step",
        _JAX,
        "gradients are sorted for their median; fixed: scaled by their mean",
        ("data-shuffling",),
    ),
    HostProgram(
        "one_hot_words",
        _JAX,
        "words are looked up by a product with one-hot rows; fixed: gathered",
        ("one-hot-product",),
    ),
    HostProgram(
        "factors_first",
        _JAX,
        "factors are multiplied with each other first; fixed: with the activation",
        ("costly-product-order",),
    ),
    HostProgram(
        "small_batches", _KERAS, "fit on batches of four; fixed: 32 steps per execution", _CALLS
    ),
    HostProgram(
        "one_map",
        _KERAS,
        "a heavy map without parallel calls; fixed: parallel and ahead",
        ("tfdata-sequential-map", "tfdata-no-prefetch", *_STALL),
    ),
    HostProgram(
        "metrics_outside",
        _KERAS,
        "metrics are updated and read outside of the tf.function; fixed: inside, read at the end",
        ("eager-operators", "step-gap", "python-overhead", "launch-bound"),
    ),
    HostProgram(
        "doubles_in_graph",
        _KERAS,
        "float64; fixed: float32",
        ("double-precision", "double-precision-program"),
    ),
    HostProgram("large_batches", _KERAS, "fit on cached and prefetched large batches"),
    HostProgram(
        "slow_dataset",
        _KERAS_ON_JAX,
        "a PyDataset that computes each batch; fixed: by NumPy once",
        _STALL,
    ),
    HostProgram(
        "small_steps",
        _KERAS_ON_JAX,
        "fit on tiny batches on JAX; fixed: 16 steps per execution",
        _CALLS,
    ),
)
