"""Whether long gaps between operators or launches are what a program does in each step."""

from __future__ import annotations

import numpy as np

from tb_perfadvisor.signals.core.causes import Cause
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.trace.intervals import Intervals, intersect, total_ns

_FEWEST_GAPS = 3


def recurs(signals: Signals, gaps: Intervals) -> bool:
    """Whether the gaps occur in most steps rather than once."""
    steps = signals.steps
    length = gaps[:, 1] - gaps[:, 0]
    if len(steps) <= 1:
        # One long stretch among short ones is something that the program does once.
        return len(gaps) >= _FEWEST_GAPS and 3 * int(length.max()) <= 2 * int(length.sum())
    # A gap that crosses the end of a step belongs to the step with most of it.
    step = np.searchsorted(steps.start_ns, gaps[:, 0] + length // 2, side="right")
    return bool(2 * len(distinct(step)) > len(steps))


def is_python_in_single_step(signals: Signals, claims: Intervals) -> bool:
    """Whether the only step, marked by the program, runs Python where it stalls.

    One-time work, such as loading a library or allocating memory, is mostly native code.
    """
    steps = signals.steps
    python_ns = total_ns(intersect(claims, signals.attribution.intervals[Cause.PYTHON]))
    return len(steps) == 1 and not steps.is_inferred and 2 * python_ns > total_ns(claims)


def records_all_operators(signals: Signals) -> bool:
    """Whether time between two operators is Python; not if threads run collectives."""
    trace = signals.trace
    return (
        signals.device.is_host_only
        and trace.source.framework == "pytorch"
        and len(trace.rows(EventKind.HOST_COLLECTIVE)) == 0
    )
