"""Builds the programs of the pairs: what the compiler's process executes."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from compiled_pairs.catalog import pair_named
from compiled_pairs.program import Array, Program, Role
from compiled_pairs.sharded import CHIPS


def program_of(name: str, role: Role) -> Program:
    """The slow or the fixed program of a pair.

    Args:
        name: The pair's name.
        role: Which of the two.
    """
    pair = pair_named(name)
    module, _, function = pair.program.rpartition(".")
    build_one = getattr(import_module(f"compiled_pairs.{module}"), function)
    program: Program = build_one(role, *pair.sizes)
    return program


class Lowering:
    """A jitted function that is compiled with its own options."""

    def __init__(self, program: Program, devices: Sequence[Any]) -> None:
        """Place a program on the first of some devices."""
        self._options = dict(program.options)
        self._mesh = Mesh(np.array(devices[: program.chips]), (CHIPS,))
        step = program.step
        if program.chips > 1 and program.is_manual:
            specs = jax.tree.map(lambda array: array.spec, program.arguments)
            step = jax.shard_map(
                step, mesh=self._mesh, in_specs=specs, out_specs=program.result, check_vma=False
            )
            step.__name__ = program.step.__name__
        self._jitted = jax.jit(step, donate_argnums=program.donated)
        self.arguments = jax.tree.map(self._place, program.arguments)

    def lower(self, *arguments: Any) -> Any:
        """Lower the function; what it returns compiles without further options."""
        with self._mesh:
            return _Lowered(self._jitted.lower(*arguments), self._options)

    def _place(self, array: Array) -> Any:
        spec: PartitionSpec = array.spec
        return jax.ShapeDtypeStruct(
            array.shape, array.dtype, sharding=NamedSharding(self._mesh, spec)
        )


class _Lowered:
    def __init__(self, lowered: Any, options: dict[str, str]) -> None:
        self._lowered, self._options = lowered, options

    def compile(self) -> Any:
        return self._lowered.compile(self._options or None)


def build(name: str, role: Role, devices: Sequence[Any]) -> tuple[Lowering, tuple[Any, ...]]:
    """A program that can be lowered, and its arguments."""
    lowering = Lowering(program_of(name, role), devices)
    return lowering, lowering.arguments
