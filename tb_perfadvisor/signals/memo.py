"""Signals in modules of their own: functions of a worker's facts, computed once."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from threading import RLock
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from tb_perfadvisor.signals.signals import Signals

T = TypeVar("T")

_LOCK = RLock()


def memoized(signal: Callable[[Signals], T]) -> Callable[[Signals], T]:
    """Compute a signal once for each worker, when it is first asked for, by any thread.

    What it returns is shared: it must be read-only. It lives as long as the worker's `Signals`,
    so it may not hold on to them.
    """
    known: WeakKeyDictionary[Signals, T] = WeakKeyDictionary()
    locks: WeakKeyDictionary[Signals, RLock] = WeakKeyDictionary()

    @wraps(signal)
    def once(signals: Signals) -> T:
        if signals not in known:
            with _LOCK:
                lock = locks.setdefault(signals, RLock())
            with lock:
                if signals not in known:
                    known[signals] = signal(signals)
        return known[signals]

    return once
