"""The work of a program that runs on the CPU without XLA: its operators."""

from __future__ import annotations

from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct, places_by_value, row_mask
from tb_perfadvisor.trace.intervals import Intervals, join, minus, union
from tb_perfadvisor.trace.tables import Int32


def host_operations(trace: Trace) -> Int32:
    """Operations of XLA that the CPU executes, in order of start; loops and calls aside."""
    events = trace.events
    rows: Int32 = distinct(trace.hlo_events.row)
    parents = events.parent[rows]
    return rows[~row_mask(len(events), parents[parents >= 0])[rows]]


def host_work(trace: Trace, step_track: int) -> Intervals:
    """The work of a CPU-only capture.

    In PyTorch, the operators of the step thread. In TensorFlow and JAX, those of the executor on
    every thread. Operators inside the input pipeline are input, not work. Operators that
    torch.compile calls while tracing compute nothing.
    """
    events = trace.events
    rows = trace.rows(EventKind.OPERATOR)
    if trace.source.framework == "pytorch":
        rows = rows[events.track[rows] == step_track]
        feeding = trace.rows(EventKind.INPUT_WAIT, EventKind.COMPILE)
        feeding = feeding[events.track[feeding] == step_track]
        waits = union(events.start_ns[feeding], events.end_ns[feeding])
        return minus(union(events.start_ns[rows], events.end_ns[rows]), waits)
    input_rows = trace.rows(EventKind.INPUT_WAIT, EventKind.INPUT_WORK)
    input_by_track = {
        track: input_rows[places] for track, places in places_by_value(events.track[input_rows])
    }
    busy = []
    for track, places in places_by_value(events.track[rows]):
        own, feeding = rows[places], input_by_track.get(track, input_rows[:0])
        feeding_time = union(events.start_ns[feeding], events.end_ns[feeding])
        busy.append(minus(union(events.start_ns[own], events.end_ns[own]), feeding_time))
    return join(*busy)
