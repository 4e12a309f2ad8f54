"""The batch that the first work of a recording without steps is about.

Idle time before the first work comes from how a profile was recorded, except for the wait for its
batch: that is a part of the first iteration.
"""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.core.device import DeviceTimeline
from tb_perfadvisor.trace import EventKind, Trace

# torch/utils/data/dataloader.py: the loader with worker processes.
_PROCESSES = re.compile("_MultiProcessingDataLoaderIter")
_ALIKE = 1 / 3
"""A later fetch that takes this share of the first one shows that loading is slow each time."""


class FirstFetch(Struct, frozen=True):
    """A fetch that a thread waits for before it launches the first work."""

    row: int
    is_only: bool
    """Whether the thread fetches nothing later."""
    has_processes: bool
    """Whether processes load, which start with the first fetch."""


def fetch_before_work(trace: Trace, timeline: DeviceTimeline) -> FirstFetch | None:
    """The last fetch before the first work is launched; None if there is none.

    A first fetch that takes far longer than the later ones does not count: it is the loader's
    start, and the recording shows the program at work after it.

    Args:
        trace: The trace.
        timeline: The device that stands for the rank.
    """
    events = trace.events
    linked = timeline.rows[events.launched_by[timeline.rows] >= 0]
    if timeline.index is None or len(linked) == 0:
        return None
    launch = int(events.launched_by[linked[0]])
    fetches = trace.rows(EventKind.INPUT_WAIT)
    fetches = fetches[events.track[fetches] == events.track[launch]]
    before = fetches[events.end_ns[fetches] <= events.start_ns[launch]]
    if len(before) == 0:
        return None
    row = int(before[np.argmax(events.end_ns[before])])
    later = fetches[events.start_ns[fetches] > events.start_ns[launch]]
    longest_ns = int(events.duration_ns[later].max()) if len(later) else 0
    if len(later) and longest_ns < _ALIKE * int(events.duration_ns[row]):
        return None
    return FirstFetch(
        row, len(later) == 0, bool(_PROCESSES.search(trace.text(int(events.name[row]))))
    )
