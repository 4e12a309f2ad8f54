"""Launches that take the host far longer than others, by the device work that they launch.

An idle gap is grouped with those before the same work by the same launcher, however long it is:
what the host does before one kernel is one cause, whether a gap lasts 1.9 or 2.1 ms.
"""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.core.idle_gaps import Idle
from tb_perfadvisor.signals.device.device_work import operators_of, work_rows
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace.integer_groups import unique_inverse
from tb_perfadvisor.trace.intervals import Intervals, intersect, overlap_ns, union
from tb_perfadvisor.trace.tables import Int32, Int64

_EXCESS = 10
"""How many times its share of the launches a launcher's share of the idle time is. Kernels before
which the host checks or allocates more than usual reach 5 (cuDNN's convolutions 9)."""
_FEWEST_PER_STEP = 3
"""What happens once or twice in a step is no launch that is slow, but other code of the step."""
_LEAST_SHARE = 0.05
"""Of the steps. What is less stays a part of launching in general."""
_TYPICAL = 0.5
"""The median gap is at least this part of the mean: a few long gaps among short ones differ in
something else than the kernel."""
_NUMBERED = re.compile(r"_\d+$")
"""Inductor numbers its calls of a Triton kernel: `linear_relu_square_kernel_1`."""


class SlowLaunch(Struct, frozen=True):
    """The launches of one kernel by one operator, and the idle time before them."""

    event: str
    """The kernel or other device work."""
    operator: str
    """The innermost operator around the launch; empty if unknown."""
    launch_row: Int32
    """The calls that launched it after idle time; shape (gaps,)."""
    gap_ns: Int64
    """The idle time before each of them; shape (gaps,)."""
    launches: int
    """All launches of this work in the used window, those without idle time included."""
    excess: float
    """Its share of the idle time, divided by its share of the launches."""
    idle: Intervals
    idle_ns: int


def find_slow_launches(signals: Signals, idle: Intervals) -> tuple[SlowLaunch, ...]:
    """Work before which the host takes far longer than before other work, the costliest first.

    Args:
        signals: The worker's facts.
        idle: The idle time to explain, a part of `Signals.host_idle`.
    """
    trace, gaps = signals.trace, signals.attribution.idle
    rows = work_rows(signals)
    rows = rows[trace.events.launched_by[rows] >= 0]
    if not len(rows) or not len(idle):
        return ()
    name, operator = _launchers(signals, rows)
    key, group = unique_inverse(name.astype(np.int64) * (len(trace.strings) + 1) + operator + 1)
    group_of = np.full(len(trace.events) + 1, -1, dtype=np.int64)
    group_of[rows] = group
    launched = np.bincount(group, minlength=len(key))
    idle_ns = overlap_ns(idle, gaps.start_ns, gaps.end_ns)
    of_gap = np.where(idle_ns > 0, group_of[gaps.next_row], -1)
    total_ns = max(int(idle_ns.sum()), 1)
    found = []
    for number in np.unique(of_gap[of_gap >= 0]).tolist():
        members = np.flatnonzero(of_gap == number)
        sum_ns = int(idle_ns[members].sum())
        excess = sum_ns / total_ns * len(rows) / int(launched[number])
        if sum_ns < _LEAST_SHARE * signals.attribution.window_ns:
            continue
        if excess < _EXCESS or len(members) < _FEWEST_PER_STEP * signals.steps.count:
            continue
        if np.median(idle_ns[members]) < _TYPICAL * idle_ns[members].mean():
            continue
        first = int(np.flatnonzero(group == number)[0])
        found.append(
            SlowLaunch(
                event=trace.text(int(name[first])),
                operator=trace.text(int(operator[first])),
                launch_row=gaps.launch_row[members],
                gap_ns=idle_ns[members],
                launches=int(launched[number]),
                excess=excess,
                idle=intersect(idle, _spans(gaps, members)),
                idle_ns=sum_ns,
            )
        )
    return tuple(sorted(found, key=lambda launch: -launch.idle_ns))


def _spans(gaps: Idle, members: NDArray[np.int64]) -> Intervals:
    return union(gaps.start_ns[members], gaps.end_ns[members])


def _launchers(signals: Signals, rows: Int32) -> tuple[Int32, Int32]:
    """The names of device events and of the operators that launch them; -1 if unknown.

    The operators that Inductor makes of a Triton kernel of the program are one.
    """
    trace = signals.trace
    names, operators = trace.events.name[rows], operators_of(signals, rows)
    operator = np.where(operators >= 0, trace.events.name[operators], -1)
    pairs = np.unique(np.stack((names, operator), axis=1), axis=0)
    for event, around in pairs.tolist():
        if around < 0 or around == event:
            continue
        if _NUMBERED.sub("", trace.strings[around]) == trace.strings[event]:
            operator[(names == event) & (operator == around)] = event
    return names.astype(np.int32), operator.astype(np.int32)
