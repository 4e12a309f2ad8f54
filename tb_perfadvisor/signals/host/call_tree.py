"""The calls of each host thread in the used window, folded into a tree."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.core.call_nodes import CallNodes, fold_calls
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind, TrackKind
from tb_perfadvisor.trace.integer_groups import places_by_value
from tb_perfadvisor.trace.nesting import nearest

_MARKS = (EventKind.STEP,)
"""Their names count up, so that below them each step would have a node of its own."""


class ThreadCalls(Struct, frozen=True):
    """The calls of a thread."""

    track: int
    nodes: CallNodes
    """Names are strings of the trace; examples are rows of its events."""


@memoized
def call_trees(signals: Signals) -> tuple[ThreadCalls, ...]:
    """The calls of each host thread: that of the steps first, then the busiest.

    Python functions, modules, operators, annotations and runtime calls all count as calls. Time is
    cut to the used window. A call that reaches beyond its caller by a rounded clock counts for no
    more than its caller has.
    """
    trace, window = signals.trace, signals.attribution
    events = trace.events
    is_host = trace.tracks.kind[events.track] == TrackKind.HOST_THREAD
    start_ns = np.maximum(events.start_ns, window.window_start_ns)
    end_ns = np.minimum(events.end_ns, window.window_end_ns)
    is_call = is_host & (end_ns > start_ns) & ~np.isin(events.kind, _MARKS)
    rows = np.flatnonzero(is_call)
    if not rows.size:
        return ()
    around = np.where(
        events.parent[rows] >= 0, nearest(events.parent, is_call)[events.parent[rows]], -1
    )
    place = np.full(len(events), -1, dtype=np.int64)
    place[rows] = np.arange(rows.size)
    parent = np.where(around >= 0, place[around], -1)
    self_ns = end_ns[rows] - start_ns[rows]
    inside = np.bincount(
        parent[parent >= 0], weights=self_ns[parent >= 0], minlength=rows.size
    ).astype(np.int64)
    self_ns = np.maximum(self_ns - inside, 0)
    found = []
    for track, places in places_by_value(events.track[rows]):
        local = np.full(rows.size, -1, dtype=np.int64)
        local[places] = np.arange(places.size)
        above = np.where(parent[places] >= 0, local[parent[places]], -1)
        nodes, _ = fold_calls(above, events.name[rows[places]], self_ns[places])
        nodes = CallNodes(
            parent=nodes.parent,
            name=nodes.name,
            count=nodes.count,
            self_ns=nodes.self_ns,
            total_ns=nodes.total_ns,
            example=rows[places[nodes.example]],
        )
        found.append(ThreadCalls(track, nodes))

    def order(thread: ThreadCalls) -> tuple[bool, int]:
        return thread.track != signals.step_track, -int(thread.nodes.self_ns.sum())

    return tuple(sorted(found, key=order))
