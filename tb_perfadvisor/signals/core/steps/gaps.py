"""Time between steps, when no step code runs: callbacks, logging, checkpoints, evaluation.

In PyTorch, `ProfilerStep` covers everything between two `prof.step()` calls. There, the time
between steps lasts from the step's last backward, optimizer or zero-grad work to the next fetch or
forward pass. In Keras and JAX, it is the time outside the step events.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.core.steps.steps import Steps
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.intervals import (
    EMPTY,
    Intervals,
    complement,
    intersect,
    last_before,
    single,
    union,
)
from tb_perfadvisor.trace.tables import Int32, Int64

# The last work of a training step. Sources: the names that torch/optim/optimizer.py records, and
# those that autograd's engine records for the nodes that it evaluates.
_CLOSING_WORK = regex(
    r"^Optimizer\.(step|zero_grad)#|^autograd::engine::evaluate_function|Backward\d*$"
    r"|AccumulateGrad"
)


def shows_step_ends(trace: Trace, steps: Steps) -> bool:
    """Whether the trace shows where a step's own code ends; inference in PyTorch does not."""
    return len(steps) > 0 and (steps.marked_ends or len(_closing_work(trace)) > 0)


def between_steps(trace: Trace, steps: Steps, step_track: int) -> Intervals:
    """The intervals between steps on the host."""
    if len(steps) == 0:
        return EMPTY
    start_ns, end_ns = steps.host_start_ns, steps.host_end_ns
    if steps.marked_ends:
        inside = union(start_ns, steps.marker_end_ns)
        return complement(inside, int(start_ns[0]), int(end_ns[-1]))
    closing_rows = _closing_work(trace)
    if len(closing_rows) == 0:
        return EMPTY
    closing_starts = trace.events.start_ns[closing_rows]
    closing_ends = trace.events.end_ns[closing_rows]
    events = trace.events
    on_thread = events.track == step_track
    fetches = events.start_ns[(events.kind == EventKind.INPUT_WAIT) & on_thread]
    operators = events.start_ns[(events.kind == EventKind.OPERATOR) & on_thread]
    # A step may begin by zeroing gradients, which may not show as an operator.
    opening = np.sort(np.concatenate((operators, closing_starts)), kind="stable")
    # The work that closes step i begins in its window, and may end after it. The next step begins
    # with its fetch, or with the first operator after its marker.
    begun = np.minimum(closing_starts, closing_ends - 1)  # an update may take no time
    order = np.argsort(begun, kind="stable")
    slot = last_before(begun[order], end_ns - 1)
    has_closing = (slot >= 0) & (closing_starts[order][np.maximum(slot, 0)] >= start_ns)
    begin = np.maximum.accumulate(closing_ends[order])[np.maximum(slot, 0)]
    end = np.minimum(first_from(fetches, begin), first_from(opening, end_ns))
    end = np.maximum(np.where(end == _NEVER, end_ns, end), begin)
    gaps = union(begin[has_closing], end[has_closing])
    # A fetch that begins before the closing work ends belongs to the step itself.
    return intersect(single(int(start_ns[0]), int(end_ns[-1])), gaps)


_NEVER = np.iinfo(np.int64).max


def first_from(times: Int64, at_ns: Int64) -> Int64:
    """For each moment, the first of the sorted `times` at it or later; `_NEVER` without one."""
    if len(times) == 0:
        return np.full(len(at_ns), _NEVER, dtype=np.int64)
    slot = np.searchsorted(times, at_ns, side="left")
    first: Int64 = np.where(slot < len(times), times[np.minimum(slot, len(times) - 1)], _NEVER)
    return first


def _closing_work(trace: Trace) -> Int32:
    """Rows of backward, optimizer and zero-grad work, in order of start."""
    rows = trace.rows(EventKind.OPERATOR, EventKind.ANNOTATION)
    return rows[is_closing(trace, rows)]


def is_closing(trace: Trace, rows: Int32) -> NDArray[np.bool_]:
    """Which rows are backward, optimizer or zero-grad work."""
    names = trace.events.name[rows]
    matching = [
        name for name in distinct(names).tolist() if _CLOSING_WORK.search(trace.strings[name])
    ]
    return is_in(names, matching)
