"""A pool of processes on this machine."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager


@contextmanager
def open_pool(workers: int) -> Iterator[Executor]:
    """Processes that are spawned, since a fork of a process with threads can hang.

    Args:
        workers: How many.

    Raises:
        ImportError: If the system has no semaphores.
        OSError: If it gives none, as without a writable /dev/shm, or too few file descriptors.
    """
    executor = ProcessPoolExecutor(
        workers, mp_context=multiprocessing.get_context("spawn"), initializer=_start_worker
    )
    try:
        executor.submit(_start)
        yield executor
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _start_worker() -> None:
    """Leave Ctrl-C to the parent, and end with it even if it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _start() -> None:
    """Do nothing: a task starts the first process, and shows whether that is possible."""


def _end_with_parent() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()
        signal.raise_signal(signal.SIGTERM)
