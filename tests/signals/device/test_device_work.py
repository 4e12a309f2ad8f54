"""Compare exclusive device time with a count of cells."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.device.device_work import exclusive_time, exclusive_time_of_each
from tb_perfadvisor.testing import draw, run_of
from tb_perfadvisor.testing.symbols import Symbol
from tb_perfadvisor.trace import EventKind

SEQUENTIAL = """
    cell 1ms
    step   |........|........|
    main   |oooooo..|oooooo..|
    gpu 7  |KKmmb.K.|KKmmb.K.|
"""
CONCURRENT = SEQUENTIAL + "    gpu 8  |...KKK..|...KKK..|\n"


@pytest.mark.parametrize("drawing", [SEQUENTIAL, CONCURRENT])
@given(chosen=st.sets(st.integers(0, 15)))
def test_exclusive_time_is_when_only_the_chosen_work_runs(drawing: str, chosen: set[int]) -> None:
    signals = Signals(run_of(draw(drawing)))
    rows, events = signals.device.rows, signals.trace.events
    indexes = np.array(sorted(chosen & set(range(len(rows)))), dtype=np.int64)
    begin, end = signals.attribution.window_start_ns, signals.attribution.window_end_ns
    cells = range(begin // 1_000_000, end // 1_000_000)
    running = {
        cell: {
            index
            for index, row in enumerate(rows.tolist())
            if events.start_ns[row] <= cell * 1_000_000 < events.end_ns[row]
        }
        for cell in cells
    }
    alone = [cell for cell, work in running.items() if work and work <= set(indexes.tolist())]
    exclusive = exclusive_time(signals, rows[indexes])
    assert [cell for start, stop in exclusive // 1_000_000 for cell in range(start, stop)] == alone
    each = exclusive_time_of_each(signals, rows[indexes], exclusive) // 1_000_000
    assert each.tolist() == [sum(index in running[cell] for cell in alone) for index in indexes]


def test_a_loop_does_not_run_beside_its_body() -> None:
    body = Symbol(EventKind.OPERATOR, "dot.3", hlo={"text": "%dot.3 = f32[8,8]{1,0} dot()"})
    loop = Symbol(EventKind.OPERATOR, "while.4", hlo={"text": "%while.4 = f32[8,8]{1,0} while()"})
    drawing = """
        cell 1ms
        step |..........|..........|
        main |.wwwwwwww.|.wwwwwwww.|
        main |..mm..mm..|..mm..mm..|
    """
    drawn = draw(drawing, legend={"m": body, "w": loop}, framework="jax")
    names = [drawn.name(row) for row in range(len(drawn.events))]
    rows = np.array([row for row, name in enumerate(names) if name == "dot.3"], dtype=np.int32)
    exclusive = exclusive_time(Signals(run_of(drawn)), rows)
    assert int((exclusive[:, 1] - exclusive[:, 0]).sum()) == 8_000_000
