"""What a device does before its first kernel, and never again: a model is loaded.

Copies of parameters are no batches. If a recording without steps begins with them, the program
itself begins with the first kernel. Copies that recur are a part of the program.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.core.device import DeviceTimeline
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import is_in
from tb_perfadvisor.trace.intervals import last_before, union

LEAST_SHARE = 0.05
"""A smaller part of the recording changes no figure by more."""
_AS_LONG = 0.5
"""If a later pause between kernels holds copies and is that long, the set-up recurs."""


class SetUp(Struct, frozen=True):
    """The time before the first kernel."""

    start_ns: int
    end_ns: int
    recorded_ns: int
    """From the first to the last work of the device, set-up included."""
    copies: int
    size_bytes: int
    """Of all copies; 0 if that is unknown."""


def find_set_up(trace: Trace, timeline: DeviceTimeline) -> SetUp | None:
    """The set-up with which the device's work begins; None if there is none, or little."""
    events, rows = trace.events, timeline.rows
    kind = next((device.kind for device in trace.devices if device.index == timeline.index), "")
    computes = is_in(events.kind[rows], (EventKind.KERNEL, EventKind.COLLECTIVE))
    is_other = trace.totals is not None or kind == "tpu"
    if is_other or not computes.any() or not len(timeline.busy):
        return None
    first = int(computes.argmax())
    start_ns, end_ns = int(timeline.busy[0, 0]), int(timeline.busy[-1, 1])
    begins_ns = int(events.start_ns[rows[first]])
    if begins_ns - start_ns < LEAST_SHARE * (end_ns - start_ns):
        return None
    running = union(events.start_ns[rows[computes]], events.end_ns[rows[computes]])
    pauses_ns = running[1:, 0] - running[:-1, 1]
    others = rows[first:][~computes[first:]]
    pause = last_before(running[:, 0], events.start_ns[others])
    pause = pause[(pause >= 0) & (pause < len(pauses_ns))]
    if len(pause) and int(pauses_ns[pause].max()) >= _AS_LONG * (begins_ns - start_ns):
        return None
    before = trace.by_event(trace.copies.row, trace.copies.size_bytes, 0)[rows[:first]]
    return SetUp(start_ns, begins_ns, end_ns - start_ns, first, int(np.maximum(before, 0).sum()))
