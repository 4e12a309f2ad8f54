"""Adds derived lines of device planes, which cover real work and never count as busy."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from tb_perfadvisor.ingest.xspace.decode.events import Line
from tb_perfadvisor.ingest.xspace.decode.planes import UNUSED_LINES
from tb_perfadvisor.trace import Assembler, EventKind, TrackKind
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.trace.tables import Int32, Int64

_KINDS: Final = {
    "XLA Modules": EventKind.DEVICE_MODULE,
    "XLA Ops": EventKind.DEVICE_OP,
    "Steps": EventKind.DEVICE_STEP,
    "Async XLA Ops": EventKind.DEVICE_ASYNC,
    "XLA Async Ops": EventKind.DEVICE_ASYNC,
}
# Sampled hardware counters, which have no duration.
_COUNTERS: Final = "_counters_"
_DERIVED: Final = frozenset(
    {
        *_KINDS,
        *UNUSED_LINES,
        *("XLA TraceMe", "Tensor Core", "Overlay", _COUNTERS),
    }
)
_TRAILING_NUMBER: Final = re.compile(r"(?:.*\D)?(\d{1,9})$")


def add_derived_line(
    assembler: Assembler, line: Line, device: int, launches: Int64 | int = -1
) -> Int32:
    """Add a line that covers or repeats real work.

    Args:
        assembler: Receives the events.
        line: The line.
        device: The device's index.
        launches: What links each event to the call that launched it; -1 for nothing.

    Returns:
        The provisional ids of the events.
    """
    if not len(line) or line.name == _COUNTERS:
        return np.empty(0, dtype=np.int32)
    kind = _KINDS.get(line.name, EventKind.DEVICE_ANNOTATION)
    step: Int64 = np.full(len(line), -1, dtype=np.int64)
    if kind == EventKind.DEVICE_STEP:
        step = step_numbers(line)
    # Only the names that occur here: a plane may have many lines and many names.
    used = distinct(line.row)
    labels = [line.names[row] for row in used.tolist()]
    if kind in (EventKind.DEVICE_OP, EventKind.DEVICE_ASYNC):
        # The full name is the HLO text.
        displays = [line.metadata.displays[row] for row in used.tolist()]
        labels = [display or name for display, name in zip(displays, labels, strict=True)]
    track = assembler.add_track(
        TrackKind.DEVICE_LINE, thread=line.id, device=device, label=line.name
    )
    return assembler.add_events(
        line.start_ns,
        line.duration_ns,
        kind=kind,
        name=assembler.intern_all(labels)[np.searchsorted(used, line.row)],
        track=track,
        step=step,
        correlation=launches,
    )


def is_derived(name: str) -> bool:
    """Whether a line is known to cover or repeat real work, on any device."""
    return name in _DERIVED


def step_numbers(line: Line) -> Int64:
    """The number of each event on a `Steps` line, from its stat or else its name."""
    by_name = np.full(len(line.names), -1, dtype=np.int64)
    for row in distinct(line.row).tolist():
        match = _TRAILING_NUMBER.match(line.names[row])
        if match:
            by_name[row] = int(match[1])
    steps = by_name[line.row]
    for stat in ("group_id", "step_num"):
        numbers = line.numbers(stat)
        steps = np.where((numbers >= 0) & (numbers < 2**31), numbers, steps)
    return steps
