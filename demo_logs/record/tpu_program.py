"""Compiles the programs of the TPU demo: `python -m demo_logs.record.tpu_program`.

It needs jax and libtpu, but no TPU: the profiles are written from what XLA's compiler says. Its
answers are kept beside it, so that `synthetic.py` works without them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from demo_logs.record.compiled_tpu import generation_named, schedule_of
from demo_logs.record.synthetic_tpu import FITTING, PADDED, store
from tb_perfadvisor.tpu_compiler import CompiledProgram, Source, compile_for_tpu

GENERATION = "v6e"
# Compiled under the name program.py.
_PROGRAM = """
import jax
import jax.numpy as jnp

jax.config.update("jax_hlo_source_file_canonicalization_regex", r".*/")

BATCH, LENGTH, FEATURES, HEADS, SIZE = 4, {length}, 1024, 16, 64


def attention(x, layer):
    query, key, value = (jnp.einsum("bsm,mhd->bhsd", x, layer[name]) for name in "qkv")
    scores = jnp.einsum("bhqd,bhkd->bhqk", query, key).astype(jnp.float32) * SIZE**-0.5
    weights = jax.nn.softmax(scores).astype(x.dtype)
    mixed = jnp.einsum("bhqk,bhkd->bhqd", weights, value)
    return x + jnp.einsum("bhsd,hdm->bsm", mixed, layer["o"])


def encode(x, layer):
    return attention(x, layer)


def program(devices):
    def array(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16)

    layer = {{name: array(FEATURES, HEADS, SIZE) for name in "qkv"}}
    layer["o"] = array(HEADS, SIZE, FEATURES)
    return jax.jit(encode, donate_argnums=0), (array(BATCH, LENGTH, FEATURES), layer)
"""


def main() -> None:
    """Compile both programs and store their schedules."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument(
        "--python",
        type=Path,
        default=Path(sys.executable),
        help="an interpreter with jax and libtpu",
    )
    given = parser.parse_args()
    generation = generation_named(GENERATION)
    lengths = (PADDED, FITTING)
    sources = [Source(_PROGRAM.format(length=length)) for length in lengths]
    answers = compile_for_tpu(generation, sources, time_limit_s=600, python=given.python)
    for length, answer in zip(lengths, answers, strict=True):
        if not isinstance(answer, CompiledProgram):
            sys.exit(f"not compiled: {answer.reason}")
        store(schedule_of(answer, generation), length)


if __name__ == "__main__":
    main()
