"""Kinds of steps: those that accumulate gradients, those that update, evaluation, longer ones.

Steps of different kinds do different work, so a mean over them depends on which of them were
recorded. Each kind gets figures of its own, and a regular sequence is a cycle.
"""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.core.steps.launched_work import owner_by_time
from tb_perfadvisor.signals.core.steps.marker_rows import rows_named
from tb_perfadvisor.signals.core.steps.server_annotations import server_annotations
from tb_perfadvisor.signals.core.steps.windows import Windows
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.tables import Int64

# Names that torch/optim/optimizer.py records, and those of autograd's engine and nodes.
_UPDATE = re.compile(r"^Optimizer\.step#")
_BACKWARD = re.compile(r"^autograd::engine::evaluate_function|Backward\d*$|AccumulateGrad")
_LONGER = 1.25
"""Steps of a longer kind hold at least this much more work than the longest of the others."""
_FEWEST = 2
"""A single step that differs may be an outlier, or cut off."""
_FEWEST_LONGER = 3
"""With nothing but their work to tell steps apart, every second of four may be longer by chance."""

Mask = NDArray[np.bool_]


class Kinds(Struct, frozen=True):
    """The kind of each marker."""

    of_marker: Int64
    """Index into `names`. Shape (markers,)."""
    names: tuple[str, ...]
    """In plain words; a single empty one if all steps are alike."""
    period: int = 0
    """Steps in a cycle, of which the last one is of the second kind; 0 without a cycle."""


def step_kinds(trace: Trace, windows: Windows) -> Kinds:
    """The kinds of steps that the markers show.

    An inference server states its own kinds, which have views and rules of their own.
    """
    alike = Kinds(np.zeros(len(windows.host_start_ns), dtype=np.int64), ("",))
    if trace.totals is not None or len(server_annotations(trace)):
        return alike
    update, backward = _has(trace, windows, _UPDATE), _has(trace, windows, _BACKWARD)
    evaluates = ~update & ~backward & (windows.work_ns > 0)
    if backward.any() and evaluates.sum() >= _FEWEST and (~evaluates).sum() >= _FEWEST:
        return Kinds(evaluates.astype(np.int64), ("training", "forward pass only"))
    if backward.any() and not update.all() and (period := _period(update)):
        names = ("accumulates gradients", "updates the parameters")
        return Kinds(update.astype(np.int64), names, period)
    longer = _longer(windows.work_ns)
    if period := _period(longer):
        return Kinds(longer.astype(np.int64), ("shorter", "longer"), period)
    return alike


def _has(trace: Trace, windows: Windows, pattern: re.Pattern[str]) -> Mask:
    """Whether events of a name begin in the host's window of each step."""
    rows = rows_named(trace, pattern, EventKind.OPERATOR, EventKind.ANNOTATION)
    at_ns = trace.events.start_ns[rows]
    owner = owner_by_time(windows.host_start_ns, windows.host_end_ns, at_ns)
    found: Mask = np.bincount(owner[owner >= 0], minlength=len(windows.host_start_ns)) > 0
    return found


def _period(is_second: Mask) -> int:
    """The distance of the steps that are of the second kind, if it is always the same; else 0.

    The sequence must cover all steps, except that the recording may begin or end inside a cycle.
    """
    place = np.flatnonzero(is_second)
    if len(place) < _FEWEST:
        return 0
    period = int(place[1] - place[0])
    is_regular = period > 1 and bool((np.diff(place) == period).all())
    covers = place[0] < period and place[-1] + period >= len(is_second)
    return period if is_regular and covers else 0


def _longer(work_ns: Int64) -> Mask:
    """The steps above the widest gap in the amounts of work, if that is wide."""
    ordered = np.sort(work_ns)
    none = np.zeros(len(work_ns), dtype=bool)
    if len(ordered) <= _FEWEST_LONGER or ordered[0] <= 0:
        return none
    ratio = ordered[1:] / ordered[:-1]
    widest = int(ratio.argmax())
    longer: Mask = (work_ns > ordered[widest]) & (ratio[widest] >= _LONGER)
    return longer if longer.sum() >= _FEWEST_LONGER else none
