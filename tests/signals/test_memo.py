"""A memoized function is computed once per subject, by any thread."""

from __future__ import annotations

import gc
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from tb_perfadvisor.signals import Signals, memoized
from tb_perfadvisor.testing import draw, run_of


def test_value_is_computed_once_and_forgotten_with_its_subject() -> None:
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


def test_concurrent_threads_get_the_same_value() -> None:
    asked: list[object] = []
    together = Barrier(2, timeout=30)

    @memoized
    def slow(signals: Signals) -> object:
        time.sleep(0.05)  # the other thread asks meanwhile
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


def test_values_are_memoized_per_argument_and_may_be_given() -> None:
    calls: list[int] = []

    @memoized
    def plus(signals: Signals, number: int = 0) -> int:
        calls.append(number)
        return signals.worker + number

    signals = Signals(run_of(draw("cell 1ms\nstep  |....|....|\ngpu 7 |KK..|KK..|")))
    assert [plus(signals, 1), plus(signals, 2), plus(signals, 1)] == [1, 2, 1]
    assert calls == [1, 2]
    plus.store(signals, 7)
    assert (plus(signals), calls) == (7, [1, 2])
