"""Time that some of the device's work has for itself, against the intervals' algebra."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.device.device_work import exclusive_time, exclusive_time_of_each
from tb_perfadvisor.testing import draw, run_of

ONE_BY_ONE = """
    cell 1ms
    step   |........|........|
    main   |oooooo..|oooooo..|
    gpu 7  |KKmmb.K.|KKmmb.K.|
"""
TOGETHER = ONE_BY_ONE + "    gpu 8  |...KKK..|...KKK..|\n"


@pytest.mark.parametrize("lanes", [ONE_BY_ONE, TOGETHER])
@given(chosen=st.sets(st.integers(0, 15)))
def test_what_runs_while_nothing_else_does(lanes: str, chosen: set[int]) -> None:
    signals = Signals(run_of(draw(lanes)))
    rows, events = signals.device.rows, signals.trace.events
    own = np.array(sorted(chosen & set(range(len(rows)))), dtype=np.int64)
    begin, end = signals.attribution.window_start_ns, signals.attribution.window_end_ns
    cells = range(begin // 1_000_000, end // 1_000_000)
    running = {
        cell: {
            place
            for place, row in enumerate(rows.tolist())
            if events.start_ns[row] <= cell * 1_000_000 < events.end_ns[row]
        }
        for cell in cells
    }
    alone = [cell for cell, there in running.items() if there and there <= set(own.tolist())]
    found = exclusive_time(signals, rows[own])
    assert [cell for start, stop in found // 1_000_000 for cell in range(start, stop)] == alone
    each = exclusive_time_of_each(signals, rows[own], found) // 1_000_000
    assert each.tolist() == [sum(place in running[cell] for cell in alone) for place in own]
