"""Gaps of the device that slow launching explains, and longer ones that it does not."""

from __future__ import annotations

from tb_perfadvisor.signals.core.idle_gaps import Idle
from tb_perfadvisor.trace import Trace
from tb_perfadvisor.trace.intervals import Intervals, union

LONGEST_LAUNCH_GAP_NS = 2_000_000
"""An eager operator costs the host 5 to 20 microseconds, and the longest chains of views and checks
between two launches a few hundred. Two milliseconds without a launch have another cause."""

_LEAST_SHARE = 0.1
"""Of a core: the least that a program is taken to have, however busy others are."""


def short_and_long_gaps(idle: Idle, longest_ns: float) -> tuple[Intervals, Intervals]:
    """Gaps without queued work: those up to a length, and the longer ones."""
    length = idle.end_ns - idle.start_ns
    short = ~idle.is_queued & (length <= longest_ns)
    long = ~idle.is_queued & (length > longest_ns)
    return (
        union(idle.start_ns[short], idle.end_ns[short]),
        union(idle.start_ns[long], idle.end_ns[long]),
    )


def stretched_ns(usual_ns: float, trace: Trace) -> int:
    """How long host code takes that usually takes so long, if others use the same cores."""
    load = trace.facts.load
    return int(usual_ns / max(1 - (load.others if load is not None else 0.0), _LEAST_SHARE))


def taken_by_others_ns(span_ns: int, trace: Trace) -> int:
    """How long, of some time, other programs had the program's cores, as far as it was measured."""
    load = trace.facts.load
    return int(span_ns * load.others) if load is not None else 0
