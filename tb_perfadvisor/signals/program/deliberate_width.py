"""Operations that compute in 32 bits because the program widens 16-bit numbers for them.

Scores, normalizations, losses and sums are often widened for their precision. Nothing is gained by
advising 16-bit activations there: the program has them. Without any 16-bit source, or with large
arguments in 32 bits that raise the type of all that they meet, the width is most likely a default.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.program.graph import MOVES, running_programs
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace.program import Program

_WIDE, _NARROW = "f32", ("bf16", "f16")
_LEAST_BYTES = 1 << 20
"""Scales, rates and other small arguments raise the type of what they meet on purpose, too."""


@memoized
def widened_operations(signals: Signals) -> frozenset[int]:
    """Rows of the `HloTable` whose 32-bit arrays all come from 16-bit ones."""
    found = set[int]()
    for running in running_programs(signals):
        program = running.program
        is_wide = _has_dtype(program, (_WIDE,)) & _is_large(program)
        arguments = np.flatnonzero(is_wide & (program.argument >= 0)).tolist()
        narrow = np.flatnonzero(_has_dtype(program, _NARROW)).tolist()
        by_default = is_wide & (_widely_computed(program, arguments) | (program.argument >= 0))
        # What a kernel only spreads or moves was computed by another.
        moves = program.rows_of((*MOVES, "broadcast", "constant"))
        is_wide[moves] = False
        by_default |= is_wide & ~_widely_computed(program, narrow)
        defaults = {program.kernel_of(row) for row in np.flatnonzero(by_default).tolist()}
        defaults |= {program.kernel_of(user) for row in arguments for user in program.users(row)}
        known = {program.kernel_of(row) for row in range(len(program))}
        found |= {
            operation.op
            for name, operation in running.operations.items()
            if name in known and name not in defaults
        }
    return frozenset(found)


def _has_dtype(program: Program, dtypes: tuple[str, ...]) -> NDArray[np.bool_]:
    of_shape = np.array([shape.dtype in dtypes for shape in program.shapes], dtype=bool)
    return of_shape[program.shape] if len(of_shape) else np.zeros(len(program), dtype=bool)


def _is_large(program: Program) -> NDArray[np.bool_]:
    of_shape = np.array([s.padded_bytes >= _LEAST_BYTES for s in program.shapes], dtype=bool)
    return of_shape[program.shape] if len(of_shape) else np.zeros(len(program), dtype=bool)


def _widely_computed(program: Program, sources: list[int]) -> NDArray[np.bool_]:
    """What is computed from some values in 32 bits all the way; shape (n,)."""
    is_wide = _has_dtype(program, (_WIDE,))
    reached = np.zeros(len(program), dtype=bool)
    pending = deque(sources)
    while pending:
        for user in program.users(pending.popleft()):
            if is_wide[user] and not reached[user]:
                reached[user] = True
                pending.append(user)
    return reached
