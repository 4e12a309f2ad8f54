"""What a loop of a program passes from trip to trip, counters and stored results aside."""

from __future__ import annotations

from math import isfinite
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.program.graph import SAME_ELEMENTS, Running, running_programs
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace.hlo_text import Shape
from tb_perfadvisor.trace.program import Program
from tb_perfadvisor.trace.tables import Int32

STORES = ("dynamic-update-slice", "dynamic-update-slice-start")
SLICES = ("dynamic-slice", "dynamic-slice-start")


class LoopState(NamedTuple):
    """A loop, or several of as many trips."""

    running: Running
    trips: float
    rows: tuple[int, ...]
    """What each trip computes, by row of the program; loops inside it aside."""
    state: frozenset[int]
    """What is computed from its own value in the trip before."""
    reads_stores: bool
    """Whether a trip may read what another one stored in an array, as in a cache. What is stored
    then depends on no value of the array itself, or it would be part of the state."""


@memoized
def loop_states(signals: Signals) -> tuple[LoopState, ...]:
    """The loops of the used window with their states, by the number of their trips.

    Those are left out in which loops inside pass the state on.
    """
    return tuple(
        found
        for running in running_programs(signals)
        for trips in np.unique(running.program.runs).tolist()
        if isfinite(trips) and trips > 1
        if (found := _loop_state(running, trips)) is not None
    )


def _loop_state(running: Running, trips: float) -> LoopState | None:
    program = running.program
    rows = np.flatnonzero(program.runs == trips).tolist()
    stores = [row for row in rows if program.name_of(row) in STORES]
    reads_stores = any(not _is_only_stored(program, row, trips) for row in stores)
    # Loops inside run a multiple of the trips.
    with np.errstate(invalid="ignore"):
        inside = (program.runs >= trips) & (program.runs % trips == 0)
    on_cycles = _on_cycles(program, inside)
    of_loop = on_cycles & (program.runs == trips)
    of_inner = on_cycles & (program.runs > trips)
    sources, targets = program.sources, program.targets
    if (of_loop[sources] & of_inner[targets]).any() or (of_inner[sources] & of_loop[targets]).any():
        return None
    state = frozenset(np.flatnonzero(of_loop).tolist())
    return LoopState(running, trips, tuple(rows), state, reads_stores)


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
    # What no cycle leads to, and then what leads to no cycle.
    inside = _without_ends(inside, sources, targets)
    return _without_ends(inside, targets, sources)


def _without_ends(inside: NDArray[np.bool_], sources: Int32, targets: Int32) -> NDArray[np.bool_]:
    """Some values without those that only finitely many lead to; shape (n,)."""
    linked = inside[sources] & inside[targets]
    sources, targets = sources[linked], targets[linked]
    order = np.argsort(sources, kind="stable")
    following = targets[order].tolist()
    begins = np.searchsorted(sources[order], np.arange(len(inside) + 1)).tolist()
    missing = np.bincount(targets, minlength=len(inside)).tolist()
    stays: NDArray[np.bool_] = inside.copy()
    pending = [row for row in np.flatnonzero(inside).tolist() if not missing[row]]
    while pending:
        row = pending.pop()
        stays[row] = False
        for target in following[begins[row] : begins[row + 1]]:
            missing[target] -= 1
            if not missing[target]:
                pending.append(target)
    return stays


def _is_counter(shape: Shape) -> bool:
    return shape.elements <= 1 and not shape.dtype.startswith(("f", "bf"))
