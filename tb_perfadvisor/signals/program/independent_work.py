"""How much of a program's communication can run beside other work, by what depends on what."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.program.graph import running_programs, total_ns
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace.program import Program

_PARTS_HIDDEN = 0.5
"""What splitting a collective into parts hides: while one is sent, the next one is computed."""
_MOST_COLLECTIVES = 64


@memoized
def hideable_ns(signals: Signals) -> int | None:
    """Time of collectives that work can hide; None if no program shows it.

    Work can run beside a collective if it is neither computed from its result nor needed for it. If
    there is too little, the collective can only be split into parts.
    """
    found, known = 0.0, False
    for running in running_programs(signals):
        program = running.program
        rows = [row for row in range(len(program)) if row in program.groups][:_MOST_COLLECTIVES]
        whole_ns = total_ns(signals, running.operations.values())
        for row in rows:
            operations = running.of([row])
            own_ns = total_ns(signals, operations)
            if not own_ns:
                continue
            known = True
            tied = _reached(program, row, program.operands) | _reached(program, row, program.users)
            tied_ns = total_ns(signals, running.of(np.flatnonzero(tied).tolist()))
            free_ns = min(max(whole_ns - tied_ns, 0), own_ns)
            found += free_ns + _PARTS_HIDDEN * (own_ns - free_ns)
    return round(found) if known else None


def _reached(program: Program, row: int, next_of: Callable[[int], list[int]]) -> NDArray[np.bool_]:
    """The values that one is computed from, or that are computed from it; shape (n,)."""
    seen, pending = np.zeros(len(program), dtype=bool), [row]
    seen[row] = True
    while pending:
        for other in next_of(pending.pop()):
            if not seen[other]:
                seen[other] = True
                pending.append(other)
    return seen
