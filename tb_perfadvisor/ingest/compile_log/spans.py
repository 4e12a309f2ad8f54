"""The compiler's phases, which the log holds as pairs of events that begin and end."""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from typing import Final

import numpy as np
from msgspec import Struct

from tb_perfadvisor.trace.assembler import Interned
from tb_perfadvisor.trace.compile_log import CompilePhase
from tb_perfadvisor.trace.nesting import enclosing_rows, start_order
from tb_perfadvisor.trace.tables import Int32, Int64

_NS_PER_US: Final = 1_000
_LATEST_US: Final = 2.0**53
"""Beyond the year 2200, and no longer exact."""
_MOST_OPEN: Final = 1_000
"""A phase is seldom inside itself. Without a limit, a log that lacks ends would fill the memory."""


class PhaseSpans(Struct, frozen=True):
    """Phases that have ended; columns are (spans,)."""

    start_ns: Int64
    """From `clock_unix_ns`."""
    duration_ns: Int64
    name: Int32
    """Index into `names`."""
    names: list[str]
    phases: tuple[CompilePhase, ...]
    clock_unix_ns: int | None
    """None without any span."""


class SpanCollector:
    """Pairs the events that begin and end a phase."""

    def __init__(self) -> None:
        self._names = Interned()
        self._start_us = array("d")
        self._end_us = array("d")
        self._name = array("i")
        # Worker threads of the compiler log with the main thread's id, so that phases overlap: an
        # end belongs to the last beginning of the same name.
        self._open: dict[tuple[tuple[int, int], int], list[float]] = defaultdict(list)
        self.first_us: float | None = None
        self.last_us: float | None = None

    def begin(self, name: str, at_us: float, thread: tuple[int, int]) -> None:
        """A phase begins."""
        opened = self._open[thread, self._names[name]]
        if self._saw(at_us) and len(opened) < _MOST_OPEN:
            opened.append(at_us)

    def end(self, name: str, at_us: float, thread: tuple[int, int]) -> None:
        """A phase ends; an end without a beginning is left out."""
        number = self._names[name]
        opened = self._open[thread, number]
        if opened and self._saw(at_us) and at_us >= opened[-1]:
            self._start_us.append(opened.pop())
            self._end_us.append(at_us)
            self._name.append(number)

    def finish(self) -> PhaseSpans:
        """All phases that have ended."""
        names = list(self._names)
        clock_us = math.floor(min(self._start_us)) if self._start_us else None
        start_us = np.frombuffer(self._start_us, np.float64) - (clock_us or 0)
        end_us = np.frombuffer(self._end_us, np.float64) - (clock_us or 0)
        start_ns = np.round(start_us * _NS_PER_US).astype(np.int64)
        end_ns = np.round(end_us * _NS_PER_US).astype(np.int64)
        name = np.frombuffer(self._name, np.int32)
        return PhaseSpans(
            start_ns=start_ns,
            duration_ns=end_ns - start_ns,
            name=name,
            names=names,
            phases=_phases(start_ns, end_ns, name, names),
            clock_unix_ns=None if clock_us is None else clock_us * _NS_PER_US,
        )

    def _saw(self, at_us: float) -> bool:
        if not 0 < at_us < _LATEST_US:
            return False
        self.first_us = at_us if self.first_us is None else min(self.first_us, at_us)
        self.last_us = at_us if self.last_us is None else max(self.last_us, at_us)
        return True


def _phases(
    start_ns: Int64, end_ns: Int64, name: Int32, names: list[str]
) -> tuple[CompilePhase, ...]:
    """The time of each phase without the phases inside it, the longest first."""
    order = start_order(start_ns, end_ns - start_ns)
    start_ns, end_ns, name = start_ns[order], end_ns[order], name[order]
    parent = enclosing_rows(start_ns, end_ns, np.zeros(len(order), np.int32))
    self_ns = end_ns - start_ns
    has_parent = parent >= 0
    np.subtract.at(self_ns, parent[has_parent], (end_ns - start_ns)[has_parent])
    totals = np.zeros(len(names), np.int64)
    np.add.at(totals, name, np.maximum(self_ns, 0))
    counts = np.bincount(name, minlength=len(names))
    return tuple(
        CompilePhase(names[number], int(counts[number]), int(totals[number]))
        for number in np.argsort(-totals, kind="stable").tolist()
        if counts[number]
    )
