"""Signals in modules of their own are computed once for each worker."""

from __future__ import annotations

import gc
import weakref

from tb_perfadvisor.signals import Signals, derived
from tb_perfadvisor.testing import draw, run_of


def test_computes_once_for_each_worker_and_forgets_it_with_the_worker() -> None:
    asked: list[int] = []

    @derived
    def events(signals: Signals) -> int:
        asked.append(id(signals))
        return len(signals.trace.events.start_ns)

    run = run_of(draw("cell 1ms\nstep  |....|....|\ngpu 7 |KK..|KK..|"))
    first, second = Signals(run), Signals(run)
    assert [events(first), events(first), events(second)] == [events(first)] * 3
    assert len(asked) == 2
    watched = weakref.ref(second)
    del second
    gc.collect()
    assert watched() is None
