"""Records a JAX training loop that recompiles constantly, and the same loop with padding.

The sequences of each batch differ in length. Slow: batches are as long as their
longest sequence, so the jitted step compiles for a new shape in nearly every step.
Fixed: batches are padded to one length and the padding is masked out of the loss.

    python demo_logs/record/jax_recompilation.py
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from jax_profile import profile_steps
from pairs import Pair, Role, Variant, mean_step_ns, output_directory, record_pair

BATCH_SIZE = 16
FEATURES = 128
HIDDEN = 512
MAX_LENGTH = 128

PAIR = Pair(
    slow=Variant(
        directory="jax_recompiling",
        cause="the jitted training step gets a batch of a new length in every step, and so is "
        "traced and compiled in every step",
        acceptable_first_findings=["recompilation"],
        must_not_find=["input-stall", "full-precision-compute", "memory-near-capacity"],
    ),
    fixed=Variant(
        directory="jax_healthy",
        cause="none: batches are padded to 128 positions and masked, so that the step compiles "
        "once, before the profile",
        acceptable_first_findings=[],
        must_not_find=[
            "recompilation",
            "input-stall",
            "step-gap",
            "full-precision-compute",
            "memory-near-capacity",
            "exposed-communication",
        ],
    ),
    framework="jax",
    packages=["jax", "jaxlib"],
    step_definition="mean wall time of 15 consecutive training steps (batch, gradient, update, "
    "wait for the result) after 5 warm-up steps, without the profiler; each repetition with an "
    "empty compilation cache and new parameters",
    notes="In the slow variant every length occurs once; in training, each length costs one "
    "compilation and the loss fades as lengths repeat, unless shapes vary without bound. The "
    "saving expected from the fix is the compiling less the computing on padding. Source file "
    "names in the HLO metadata are reduced to their last component. Other work ran on the "
    "machine while measuring: judge by the median.",
    script="jax_recompilation.py",
)

Parameters: TypeAlias = dict[str, jax.Array]
Batch: TypeAlias = tuple[np.ndarray, np.ndarray]


def new_parameters() -> Parameters:
    """One attention layer, one hidden layer and a read-out."""
    keys = jax.random.split(jax.random.key(0), 4)
    return {
        "query": 0.1 * jax.random.normal(keys[0], (FEATURES, FEATURES)),
        "key": 0.1 * jax.random.normal(keys[1], (FEATURES, FEATURES)),
        "hidden": 0.1 * jax.random.normal(keys[2], (FEATURES, HIDDEN)),
        "output": 0.1 * jax.random.normal(keys[3], (HIDDEN, FEATURES)),
    }


def loss(parameters: Parameters, sequences: jax.Array, mask: jax.Array) -> jax.Array:
    """Error of predicting each position's successor, averaged over what is not padding."""
    length = sequences.shape[1]
    queries = sequences @ parameters["query"]
    keys = sequences @ parameters["key"]
    scores = jnp.einsum("bqf,bkf->bqk", queries, keys) / FEATURES**0.5
    causal = jnp.tril(jnp.ones((length, length), dtype=bool))
    visible = causal & mask[:, None, :].astype(bool)
    weights = jax.nn.softmax(jnp.where(visible, scores, -1e9), axis=-1)
    hidden = jax.nn.gelu((sequences + weights @ sequences) @ parameters["hidden"])
    predictions = hidden @ parameters["output"]
    errors = jnp.square(predictions[:, :-1] - sequences[:, 1:]).mean(axis=-1) * mask[:, 1:]
    return errors.sum() / mask[:, 1:].sum()


def train_step(parameters: Parameters, sequences: jax.Array, mask: jax.Array) -> Parameters:
    """One step of gradient descent."""
    gradients = jax.grad(loss)(parameters, sequences, mask)
    return jax.tree.map(lambda value, slope: value - 0.01 * slope, parameters, gradients)


def make_batch(role: Role, number: int) -> Batch:
    """The only difference between slow and fixed: the shape of the batch.

    Returns:
        Sequences (batch, length, features) and mask (batch, length) of what is not padding.
    """
    length = 64 + 7 * number % 61  # 7 and 61 share no factor: no length twice in 61 batches
    padded_length = length if role == "slow" else MAX_LENGTH
    sequences = np.zeros((BATCH_SIZE, padded_length, FEATURES), dtype=np.float32)
    sequences[:, :length] = np.random.default_rng(number).standard_normal(
        (BATCH_SIZE, length, FEATURES), dtype=np.float32
    )
    mask = np.zeros((BATCH_SIZE, padded_length), dtype=np.float32)
    mask[:, :length] = 1.0
    return sequences, mask


class Training:
    """Parameters and training loop, with nothing compiled yet."""

    def __init__(self, role: Role) -> None:
        """Forgets what earlier repetitions compiled."""
        jax.clear_caches()
        self._role = role
        self._parameters = new_parameters()
        self._train_step = jax.jit(train_step)
        self.steps_done = 0

    def step(self) -> None:
        """Makes one batch, trains on it and waits for the result."""
        sequences, mask = make_batch(self._role, self.steps_done)
        self._parameters = self._train_step(self._parameters, sequences, mask)
        jax.block_until_ready(self._parameters)
        self.steps_done += 1


def measure(role: Role) -> int:
    """Mean step time without the profiler, in nanoseconds."""
    return mean_step_ns(Training(role).step)


def record(role: Role, directory: Path) -> int:
    """Writes a profile of five steps; returns their mean time in nanoseconds."""
    return profile_steps(Training(role).step, directory)


def main() -> None:
    """Measures, records and labels both variants."""
    output = output_directory(__doc__)
    jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")
    record_pair(output, PAIR, measure, record)


if __name__ == "__main__":
    main()
