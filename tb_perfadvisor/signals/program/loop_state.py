"""What a loop of a program passes from trip to trip, counters and stored results aside."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.signals.program.graph import SAME_ELEMENTS
from tb_perfadvisor.trace.hlo_text import Shape
from tb_perfadvisor.trace.program import Program

STORES = ("dynamic-update-slice", "dynamic-update-slice-start")
SLICES = ("dynamic-slice", "dynamic-slice-start")


class LoopState(NamedTuple):
    """A loop, or several of as many trips."""

    rows: tuple[int, ...]
    """What each trip computes, by row of the program; loops inside it aside."""
    state: frozenset[int]
    """What is computed from its own value in the trip before."""


def loop_state(program: Program, trips: float) -> LoopState | None:
    """The state of the loops with so many trips.

    None if a trip may read what another one stored, or if loops inside pass the state on.
    """
    rows = np.flatnonzero(program.runs == trips).tolist()
    stores = [row for row in rows if program.name_of(row) in STORES]
    if any(not _is_only_stored(program, row, trips) for row in stores):
        return None
    # Loops inside run a multiple of the trips.
    with np.errstate(invalid="ignore"):
        inside = (program.runs >= trips) & (program.runs % trips == 0)
    on_cycles = _on_cycles(program, inside)
    of_loop = on_cycles & (program.runs == trips)
    of_inner = on_cycles & (program.runs > trips)
    sources, targets = program.sources, program.targets
    if (of_loop[sources] & of_inner[targets]).any() or (of_inner[sources] & of_loop[targets]).any():
        return None
    return LoopState(tuple(rows), frozenset(np.flatnonzero(of_loop).tolist()))


def _is_only_stored(program: Program, store: int, trips: float) -> bool:
    """Whether nothing in a loop reads an array into which each trip stores its part."""
    pending, seen = [store], {store}
    while pending:
        for user in program.users(pending.pop()):
            if user in seen or program.runs[user] < trips:
                continue
            if program.name_of(user) not in (*STORES, *SAME_ELEMENTS):
                return False
            seen.add(user)
            pending.append(user)
    return True


def _on_cycles(program: Program, inside: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which of some values are computed from themselves, or between such ones; shape (n,)."""
    is_counter = np.array([_is_counter(shape) for shape in program.shapes], dtype=bool)
    inside = inside & ~is_counter[program.shape]
    stores = [index for index, name in enumerate(program.opcodes) if name in STORES]
    is_store = np.isin(program.opcode, stores)
    keeps = ~(is_store[program.targets] & (program.slots == 0))
    sources, targets = program.sources[keeps], program.targets[keeps]
    while True:
        # What nothing inside computes, or nothing inside reads, is on no cycle.
        linked = inside[sources] & inside[targets]
        is_computed, is_read = np.zeros_like(inside), np.zeros_like(inside)
        is_computed[targets[linked]] = True
        is_read[sources[linked]] = True
        if (is_computed & is_read == inside).all():
            return inside
        inside = is_computed & is_read


def _is_counter(shape: Shape) -> bool:
    return shape.elements <= 1 and not shape.dtype.startswith(("f", "bf"))
