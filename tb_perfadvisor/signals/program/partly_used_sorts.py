"""Sorts of which a small part is used, and what is computed for them alone."""

from __future__ import annotations

from typing import NamedTuple

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.program.graph import SAME_ELEMENTS, Running, readers, running_programs
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation
from tb_perfadvisor.trace.program import Program

_TAKES = ("slice", "dynamic-slice")
_MOST_USED = 0.25
"""Selecting a quarter of the elements costs about as much as sorting all."""
_LEAST_ELEMENTS = 1 << 12
_SHUFFLE = "_shuffle"
"""JAX sorts random numbers to shuffle; `random.choice` without replacement does, too."""

_SELECTION = "top_k"
"""The program selects already, and XLA sorts because that is faster for so many."""


class PartlyUsedSort(NamedTuple):
    """A sort of which a small part is used."""

    operation: XlaOperation
    sorted: int
    """Elements."""
    used: int
    is_random: bool
    """Whether the keys are random numbers, so that the part is a sample."""
    beside: tuple[XlaOperation, ...]
    """What else shuffles the elements, such as drawing the keys."""


@memoized
def partly_used_sorts(signals: Signals) -> tuple[PartlyUsedSort, ...]:
    """The sorts of the used window of which a small part is used."""
    return tuple(
        found
        for running in running_programs(signals)
        for row in running.program.rows_of(("sort",))
        for found in _partly_used(running, row)
    )


def _partly_used(running: Running, row: int) -> list[PartlyUsedSort]:
    program = running.program
    size, used = program.shape_of(row).elements, _used(program, row)
    operations = running.of([row])
    if used is None or not operations or size < _LEAST_ELEMENTS or used > _MOST_USED * size:
        return []
    path = program.paths.get(row, "") or operations[0].path
    # XLA itself adds sorts without a name of the framework.
    if not path or _SELECTION in path:
        return []
    prefix, is_random, _ = path.partition(_SHUFFLE)
    beside = tuple(
        o
        for o in running.operations.values()
        if is_random and o.path.startswith(f"{prefix}{_SHUFFLE}") and o.op != operations[0].op
    )
    return [PartlyUsedSort(operations[0], size, used, bool(is_random), beside)]


def _used(program: Program, row: int) -> int | None:
    """How many of the sorted elements are read at all; None if all may be."""
    users = list(readers(program, row, SAME_ELEMENTS))
    if program.is_result[row] or not users:
        return None
    if any(program.name_of(user) not in _TAKES for user in users):
        return None
    return sum(program.shape_of(user).elements for user in users)
