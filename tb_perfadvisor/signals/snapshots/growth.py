"""Whether allocated memory rises from step to step, and which lines keep it."""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.snapshots.course import Allocations, Course
from tb_perfadvisor.signals.snapshots.source_lines import line_of
from tb_perfadvisor.trace.memory_snapshot import Action
from tb_perfadvisor.trace.tables import Int64

_FEWEST = 3
_SLICES = 10
_STEPS = (
    re.compile(r"ProfilerStep#\d+$"),
    re.compile(r"Optimizer\.step#"),
    re.compile(r"Optimizer\.zero_grad#"),
)
"""What begins once in each step, the surest first."""
_NUMBER = re.compile(r"#\d+$")
_STEADY_SHARE = 0.5
"""While a program loads weights, it frees little of what it allocates."""


class Growth(Struct, frozen=True):
    """Memory by step, or by slice of the history; columns of shape (steps,)."""

    source: str
    """What the steps follow from: the name of an annotation, or equal slices of time."""
    is_inferred: bool
    """Whether they are slices."""
    state: Int64
    """The state at the end of each step."""
    allocated_bytes: Int64
    """At the end of each step; of slices, the least within each."""
    kept: Allocations
    """Allocated after the second step and before the last one, and never freed."""


def growth(course: Course) -> Growth | None:
    """Memory by step; None without times, and if neither annotations nor frees tell of steps."""
    if not course.has_times:
        return None
    found = _annotated(course)
    if found is not None:
        source, ends = found
        levels = course.allocated_bytes[ends]
    else:
        source = f"{_SLICES} equal slices of time"
        edges = np.linspace(0, int(course.at_ns[-1]), _SLICES + 1)
        ends = np.searchsorted(course.at_ns, edges, side="right") - 1
        if not _turns_over(course, ends):
            return None
        levels = np.array(
            [
                course.allocated_bytes[begin : end + 1].min()
                for begin, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)
            ]
        )
        ends = ends[1:]
    all_of = course.allocations
    late = (all_of.since > ends[min(1, len(ends) - 1)]) & (all_of.since <= ends[-2])
    return Growth(
        source, found is None, ends, levels, all_of.select(late & (all_of.until >= len(course)))
    )


class GrowingLine(Struct, frozen=True):
    """A line of the program whose allocations stay, step after step."""

    line: str
    kept: Allocations
    """After the second step and before the last one."""
    steps: int
    """The steps that it allocates in."""


def growing_lines(course: Course, found: Growth) -> tuple[GrowingLine, ...]:
    """Lines of which nothing is freed that they allocate after the second step; most bytes first.

    They allocate in several steps of both halves of the history, as a cache does that has no limit.
    """
    everything = course.allocations
    begin, end = int(found.state[min(1, len(found.state) - 1)]), int(found.state[-2])
    late = everything.select((everything.since > begin) & (everything.since <= end))
    stacks, place = np.unique(late.stack, return_inverse=True)
    line_of_stack = [line_of(course.snapshot.stacks.of(stack)) or "" for stack in stacks.tolist()]
    names, line = np.unique(line_of_stack, return_inverse=True)
    line = line[place] if len(stacks) else line
    grown = []
    for number, name in enumerate(names.tolist()):
        of_line = late.select(line == number)
        steps = np.unique(np.searchsorted(found.state, of_line.since))
        half = (begin + end) / 2
        is_spread = len(steps) >= _FEWEST and bool(
            (of_line.since <= half).any() and (of_line.since > half).any()
        )
        if name and is_spread and bool((of_line.until >= len(course)).all()):
            grown.append(GrowingLine(name, of_line, len(steps)))
    return tuple(sorted(grown, key=lambda each: -int(each.kept.bytes.sum())))


def _annotated(course: Course) -> tuple[str, Int64] | None:
    """What begins in each step, and the states in which it begins."""
    table = course.snapshot.annotations
    starts: dict[str, list[int]] = defaultdict(list)
    for name, device, start_ns in zip(
        table.name.tolist(), table.device.tolist(), table.start_ns.tolist(), strict=True
    ):
        if device in (course.device, -1):
            starts[_NUMBER.sub("#N", table.names[name])].append(start_ns)
    origin_ns = int(course.snapshot.events.at_ns[course.rows[0]])
    chosen = next(
        (
            name
            for pattern in _STEPS
            for name, times in starts.items()
            if pattern.match(name.replace("#N", "#0")) and len(times) >= _FEWEST
        ),
        None,
    )
    if chosen is None:
        return None
    at = np.array(sorted(starts[chosen])) - origin_ns
    at = at[(at >= 0) & (at <= course.at_ns[-1])]
    if len(at) < _FEWEST:
        return None
    return chosen.replace("#N", ""), np.searchsorted(course.at_ns, at, side="right") - 1


def _turns_over(course: Course, ends: Int64) -> bool:
    """Whether each slice works like one or more whole steps.

    It frees a good part of what it allocates, and allocates as much as lies between the emptiest
    and the fullest moment. In a single pass through the layers, slices allocate less.
    """
    size = course.snapshot.events.size_bytes[course.rows]
    totals = []
    for action in (Action.ALLOCATE, Action.FREE):
        places = course.places(action)
        done = np.zeros(len(course), dtype=np.int64)
        done[places + 1] = size[places]
        totals.append(np.diff(np.cumsum(done)[ends]))
    allocated, freed = totals
    range_bytes = int(np.ptp(course.allocated_bytes))
    is_whole = (allocated > 0) & (allocated >= range_bytes)
    return bool(is_whole.all() and (freed >= _STEADY_SHARE * allocated).all())
