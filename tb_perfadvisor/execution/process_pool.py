"""A pool of processes on this machine."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import ParamSpec, TypeVar

from tb_perfadvisor.execution.limits import (
    NO_LIMITS,
    Limits,
    limit_memory,
    time_limit,
    within_machine,
)

P = ParamSpec("P")
T = TypeVar("T")


@contextmanager
def open_pool(
    workers: int, limits: Limits = NO_LIMITS, *, starts: bool = True
) -> Iterator[Executor]:
    """Processes that are spawned, since a fork of a process with threads can hang.

    The first one starts at once, or with the first task.

    Raises:
        ImportError: If the system has no semaphores.
        OSError: If it gives none, as without a writable /dev/shm, or too few file descriptors.
    """
    memory_bytes = within_machine(limits.memory_bytes, workers) if limits.memory_bytes else 0
    executor = _Pool(
        workers,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
        initargs=(memory_bytes,),
    )
    executor.time_limit_s = limits.time_s
    try:
        if starts:
            executor.submit(_start)
        yield executor
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


class _Pool(ProcessPoolExecutor):
    """A pool whose tasks have a time limit."""

    time_limit_s: float = NO_LIMITS.time_s

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Submit a task with the limit."""
        task: Callable[[], T] = partial(fn, *args, **kwargs)
        return super().submit(_within, self.time_limit_s, task)


def _within(limit_s: float, task: Callable[[], T]) -> T:
    with time_limit(limit_s):
        return task()


def _start_worker(memory_bytes: int) -> None:
    """Leave Ctrl-C to the parent, and end with it even if it is killed."""
    limit_memory(memory_bytes)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _start() -> None:
    """Do nothing: a task starts the first process, and shows whether that is possible."""


def _end_with_parent() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()
        signal.raise_signal(signal.SIGTERM)
