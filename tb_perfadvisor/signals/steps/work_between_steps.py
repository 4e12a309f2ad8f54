"""What the step thread of a CPU-only capture computes between steps."""

from __future__ import annotations

import re

import numpy as np

from tb_perfadvisor.signals.core.steps.gaps import first_from, is_closing
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import distinct, is_in, places_by_value
from tb_perfadvisor.trace.intervals import Intervals, intersect, join, last_before, single, union
from tb_perfadvisor.trace.tables import Int64

_PRODUCT = re.compile(r"^aten::(_?convolution|conv[123]d|linear|addmm|mm|bmm|baddbmm|matmul)$")


def work_between_steps(signals: Signals) -> Intervals:
    """On a CPU-only capture, the step thread's operators between steps without the forward pass.

    The operators of a callback or a checkpoint are not the step's. In PyTorch, the next forward
    pass may begin before its marker: from the first operator with a backward node on, operators are
    the step's.
    """
    trace, events = signals.trace, signals.trace.events
    gaps = signals.between_steps
    rows = trace.rows(EventKind.OPERATOR)
    rows = rows[events.track[rows] == signals.step_track]
    work = intersect(gaps, union(events.start_ns[rows], events.end_ns[rows]))
    forward = np.sort(events.start_ns[distinct(events.forward[events.forward >= 0])])
    ends = np.minimum(gaps[:, 1], first_from(forward, gaps[:, 0]))
    return intersect(work, union(gaps[:, 0], ends))


def evaluation_between_steps(signals: Signals) -> Intervals:
    """The part of that work that clearly does not belong to the step.

    It lies in annotated ranges, or between the first and the last matrix product or convolution
    without a backward node, as when a model is validated.
    """
    work = work_between_steps(signals)
    if len(work) == 0:
        return work
    trace, events, gaps = signals.trace, signals.trace.events, signals.between_steps
    named = trace.rows(EventKind.ANNOTATION)
    named = named[(events.track[named] == signals.step_track) & ~is_closing(trace, named)]
    spans = [_inside(gaps, events.start_ns[named], events.end_ns[named])]
    rows = trace.rows(EventKind.OPERATOR)
    names = events.name[rows]
    products = [n for n in distinct(names).tolist() if _PRODUCT.match(trace.strings[n])]
    rows = rows[is_in(names, products) & (events.track[rows] == signals.step_track)]
    # Operators with a backward node belong to training.
    rows = np.setdiff1d(rows, events.forward[events.forward >= 0])
    slot = last_before(gaps[:, 0], events.start_ns[rows])
    inside = (slot >= 0) & (events.end_ns[rows] <= gaps[np.maximum(slot, 0), 1])
    rows = rows[inside]
    for _, places in places_by_value(slot[inside]):
        in_gap = rows[places]
        spans.append(single(int(events.start_ns[in_gap].min()), int(events.end_ns[in_gap].max())))
    return intersect(work, join(*spans))


def _inside(gaps: Intervals, start_ns: Int64, end_ns: Int64) -> Intervals:
    """Events that lie completely inside a gap."""
    slot = last_before(gaps[:, 0], start_ns)
    inside = (slot >= 0) & (end_ns <= gaps[np.maximum(slot, 0), 1])
    return union(start_ns[inside], end_ns[inside])
