"""Signals in modules of their own are computed once for each worker."""

from __future__ import annotations

import gc
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from tb_perfadvisor.signals import Signals, memoized
from tb_perfadvisor.testing import draw, run_of


def test_computes_once_for_each_worker_and_forgets_it_with_the_worker() -> None:
    asked: list[int] = []

    @memoized
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


def test_two_threads_that_ask_at_once_get_the_same() -> None:
    asked: list[object] = []
    together = Barrier(2, timeout=30)

    @memoized
    def slow(signals: Signals) -> object:
        time.sleep(0.05)  # the other one asks meanwhile
        asked.append(object())
        return asked[-1]

    signals = Signals(run_of(draw("cell 1ms\nstep  |....|....|\ngpu 7 |KK..|KK..|")))

    def ask() -> object:
        together.wait()
        return slow(signals)

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.submit(ask), threads.submit(ask)
        assert first.result() is second.result()
    assert len(asked) == 1
