"""DistributedDataParallel's broadcasts of buffers, which precede the model's forward pass.

The buffers (running statistics of BatchNorm and the like) of rank 0 are packed, broadcast and
copied into the buffers of the other ranks, one by one (torch/csrc/distributed/c10d/reducer.hpp and
comm.cpp, `broadcast_coalesced`).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.core.placement import has_ancestor
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import row_mask
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, clip, contains, intersect, union
from tb_perfadvisor.trace.names import named
from tb_perfadvisor.trace.tables import Int32

_FORWARD: Final = regex(r"^DistributedDataParallel\.forward$")
_BROADCAST: Final = regex(r"^(?:c10d::broadcast_|(?:nccl|gloo|ucc|xccl|hccl):broadcast)$")
_PACKING: Final = regex(r"^aten::(?:un)?flatten_dense_tensors$")
_COPY: Final = regex(r"^aten::copy_$")


class BufferBroadcasts(Struct, frozen=True):
    """Broadcasts of buffers in the used window."""

    forwards: int
    """Calls of `DistributedDataParallel.forward` that broadcast."""
    operators: Int32
    """The outermost operators that pack, broadcast, unpack and copy."""
    spans: Intervals
    """When the host does this, from the first operator of a forward to the last."""
    idle: Intervals
    """Idle time that the host causes meanwhile."""


@memoized
def buffer_broadcasts(signals: Signals) -> BufferBroadcasts:
    """Broadcasts of buffers on the thread that runs the steps."""
    trace, window = signals.trace, signals.attribution
    events = trace.events
    forwards = trace.rows(EventKind.ANNOTATION)
    forwards = forwards[named(trace, forwards, _FORWARD)]
    inside = trace.rows(EventKind.ANNOTATION, EventKind.OPERATOR)
    inside = inside[contains(_spans(trace, forwards), events.start_ns[inside])]
    is_operator = row_mask(len(events), trace.rows(EventKind.OPERATOR))
    outermost = inside[is_operator[inside] & ~has_ancestor(events.parent, inside, is_operator)]
    broadcasts = inside[named(trace, inside, _BROADCAST)]
    starts, ends, used, count = [], [], [np.empty(0, dtype=np.int32)], 0
    for forward in forwards.tolist():
        own = _of(trace, outermost, forward)
        if not len(_of(trace, broadcasts, forward)):
            continue
        is_part = named(trace, own, _PACKING) | named(trace, own, _BROADCAST)
        if not is_part.any():
            continue
        # Copies out of the received message follow the last unpacking.
        first, last = int(is_part.argmax()), len(own) - 1 - int(is_part[::-1].argmax())
        others = np.flatnonzero(~named(trace, own[last + 1 :], _COPY))
        end = last + 1 + (int(others[0]) if len(others) else len(own) - last - 1)
        part = own[first:end]
        starts.append(int(events.start_ns[part[0]]))
        ends.append(int(events.end_ns[part].max()))
        used.append(part)
        count += 1
    spans = clip(
        union(np.array(starts, dtype=np.int64), np.array(ends, dtype=np.int64)),
        window.window_start_ns,
        window.window_end_ns,
    )
    idle = intersect(signals.host_idle, spans) if len(spans) else EMPTY
    return BufferBroadcasts(count, np.concatenate(used), spans, idle)


def _of(trace: Trace, rows: Int32, forward: int) -> Int32:
    """The rows on the thread of a forward pass, and within it."""
    events = trace.events
    start_ns = events.start_ns[rows]
    chosen: Int32 = rows[
        (events.track[rows] == events.track[forward])
        & (start_ns >= events.start_ns[forward])
        & (start_ns < events.end_ns[forward])
    ]
    return chosen


def _spans(trace: Trace, rows: Int32) -> Intervals:
    return trace.events.spans(rows)
