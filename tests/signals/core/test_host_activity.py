from __future__ import annotations

import numpy as np

from tb_perfadvisor.signals.core.host_activity import host_activity
from tb_perfadvisor.testing import draw, ms
from tb_perfadvisor.trace import EventKind


def test_outermost_events_that_start_within_a_range() -> None:
    # `p` was running before the interval [2, 9) began. Of `u` [3, 7) 4 ms lie inside, and the
    # operator in it is part of it; of `S` [8, 11) 1 ms.
    trace = draw(
        """
        cell 1ms
        main  |pp.uuuu.SSS.|
        main  |....O.......|
        other |..OOOOO.....|
        """
    )
    track = int(trace.events.track[trace.rows(EventKind.PYTHON)[0]])
    activity = host_activity(trace, track, np.array([[ms(1), ms(9)]]))
    assert activity.names == ("## RecMetricModule:update ##", "cudaStreamSynchronize")
    assert (activity.count, activity.inside_ns) == ((1, 1), (ms(4), ms(1)))
    assert activity.covered.tolist() == [[ms(3), ms(7)], [ms(8), ms(9)]]


def test_no_events_start_in_an_empty_range() -> None:
    trace = draw(
        """
        cell 1ms
        main |OOO|
        """
    )
    activity = host_activity(trace, 0, np.empty((0, 2), dtype=np.int64))
    assert (activity.names, activity.rows.tolist()) == ((), [])
