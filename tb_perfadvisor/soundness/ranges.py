"""An optimizer's range means its update, whatever else runs inside it.

`optimizer.step(closure)` runs forward and backward inside `Optimizer.step`, as Lightning always
does, and LBFGS several times. The update is what follows the last backward operator.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import places_by_value, row_mask
from tb_perfadvisor.trace.names import named
from tb_perfadvisor.trace.nesting import nearest
from tb_perfadvisor.trace.retimed import retimed
from tb_perfadvisor.trace.tables import Int32, Int64

# PyTorch's own (torch/optim/optimizer.py), and those of programs: recordings of Nsight Systems have
# only these.
UPDATES = (
    regex(r"^Optimizer\.step#"),
    regex(r"^optim(izer)?[ _.:-]?(step|update)?$", re.IGNORECASE),
)
UPDATE = regex("|".join(each.pattern for each in UPDATES), re.IGNORECASE)
# The nodes that autograd's engine evaluates.
BACKWARD = regex(r"^autograd::engine::evaluate_function|Backward\d*$|AccumulateGrad")


def updates_alone(trace: Trace) -> Trace:
    """The trace with each optimizer's range from the end of the last backward operator in it.

    A range inside a backward operator stays: there, the optimizer updates one parameter as soon as
    its gradient is known.
    """
    events = trace.events
    updates = trace.rows(EventKind.ANNOTATION)
    updates = updates[named(trace, updates, UPDATE)]
    if not len(updates):
        return trace
    nodes = trace.rows(EventKind.OPERATOR)
    nodes = nodes[named(trace, nodes, BACKWARD)]
    is_node = row_mask(len(events), nodes)
    updates = updates[nearest(events.parent, is_node)[updates] < 0]
    begin_ns, end_ns = events.start_ns[updates], events.end_ns[updates]
    first = np.searchsorted(events.start_ns[nodes], begin_ns)
    last = np.searchsorted(events.start_ns[nodes], end_ns)
    has_nodes: NDArray[np.bool_] = last > first
    updates, end_ns = updates[has_nodes], end_ns[has_nodes]
    if not len(updates):
        return trace
    closed_ns = np.maximum.accumulate(events.end_ns[nodes])[last[has_nodes] - 1]
    start_ns, duration_ns = events.start_ns.copy(), events.duration_ns.copy()
    start_ns[updates] = np.minimum(_first_work_ns(trace, updates, closed_ns), end_ns)
    duration_ns[updates] = end_ns - start_ns[updates]
    is_moved = row_mask(len(trace.tracks), events.track[updates])
    return retimed(trace, start_ns, duration_ns, is_moved)


def _first_work_ns(trace: Trace, updates: Int32, from_ns: Int64) -> Int64:
    """When the first operator or range begins on the thread of each update, from some time on.

    The engine may have returned long before: the thread waits, or runs the rest of the closure.
    """
    events = trace.events
    work = trace.rows(EventKind.OPERATOR, EventKind.ANNOTATION)
    first_ns = from_ns.copy()
    for track, places in places_by_value(events.track[updates]):
        at_ns = events.start_ns[work[events.track[work] == track]]
        first = np.searchsorted(at_ns, from_ns[places])
        first_ns[places] = np.append(at_ns, from_ns[places].max())[first]
    found: Int64 = np.maximum(first_ns, from_ns)
    return found
