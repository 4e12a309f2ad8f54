"""Threads beside the program, which it does not see, and which end before Python does.

Garbage is collected on whichever thread makes that due, so each may free a tensor of the program.
PyTorch gives Python's lock away meanwhile. Where Python has ended before the thread takes the lock
again, Python ends the thread inside of PyTorch, and that aborts the program.
"""

from __future__ import annotations

import atexit
import os
import threading
from _thread import allocate_lock, start_new_thread
from collections.abc import Callable
from contextlib import suppress
from typing import Final

_MOST_S: Final = 5.0
"""A thread that takes longer to end is left to its fate."""


class SideThread:
    """One of them; a program that joins all that `threading` knows does not wait for it."""

    def __init__(self, run: Callable[[], object]) -> None:
        """Prepare. `run` returns soon after the event `ends` is set."""
        self.ends = threading.Event()
        self.is_started = False
        self._run = run
        self._runs = allocate_lock()

    def start(self) -> None:
        """Begin, unless it has begun before."""
        if self.is_started:
            return
        self.is_started = self._runs.acquire()
        _running.add(self)
        start_new_thread(self._run_until_the_end, ())

    def join(self, most_s: float = -1) -> None:
        """Wait until it has ended, for as long as it takes or for some seconds."""
        if self._runs.acquire(timeout=most_s):
            self._runs.release()

    def _run_until_the_end(self) -> None:
        with suppress(Exception):
            self._run()
        self.forget()

    def forget(self) -> None:
        """It has ended, or is not in this fork of the program."""
        _running.discard(self)
        self._runs.release()


_running: set[SideThread] = set()


def at_exit(call: Callable[[], object]) -> None:
    """Call something when the program ends, but not when a fork of it does."""
    process = os.getpid()
    atexit.register(lambda: call() if os.getpid() == process else None)


def _end_all() -> None:
    ending = [*_running]
    for thread in ending:
        thread.ends.set()
    for thread in ending:
        thread.join(_MOST_S)


def _forget_all() -> None:
    for thread in [*_running]:
        thread.forget()


at_exit(_end_all)  # after what is registered later
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
