"""How much lower the peak would be without some allocations: the history replayed without them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.signals.snapshots.course import Course
from tb_perfadvisor.trace.tables import Int64


def held_bytes(course: Course, chosen: NDArray[np.bool_]) -> Int64:
    """What some allocations hold in each state.

    Args:
        course: Of one device.
        chosen: Which of the course's allocations, shape (allocations,).

    Returns:
        Bytes, shape (states,).
    """
    some = course.allocations.select(chosen)
    change = np.zeros(len(course) + 1, dtype=np.int64)
    np.add.at(change, some.since, some.bytes)
    np.subtract.at(change, some.until, some.bytes)
    held: Int64 = np.cumsum(change)[:-1]
    return held


def freed_at_peak(course: Course, removed: Int64) -> int:
    """By how much the peak falls if so much less is allocated in each state.

    It falls by less than what is removed at the peak if another state is then the fullest.

    Args:
        course: Of one device.
        removed: Bytes, shape (states,).
    """
    return course.peak_allocated_bytes - int((course.allocated_bytes - removed).max())
