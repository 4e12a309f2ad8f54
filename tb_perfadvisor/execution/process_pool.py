"""A pool of processes on this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager

# Starting a process takes as long as reading a file of this size, so each gets two at least.
_LARGE_BYTES = 1_000_000
# Each process holds one trace; users who have the memory can ask for more processes.
_MAX_WORKERS = 8


def worthwhile_workers(sizes_bytes: Iterable[int]) -> int:
    """How many processes are worth their start for files of these sizes; 1 for none."""
    large = sum(size >= _LARGE_BYTES for size in sizes_bytes)
    return max(1, min(large // 2, available_processors(), _MAX_WORKERS))


@contextmanager
def open_pool(workers: int) -> Iterator[Executor]:
    """Processes that are spawned, since a fork of a process with threads can hang.

    Args:
        workers: How many.
    """
    executor = ProcessPoolExecutor(
        workers, mp_context=multiprocessing.get_context("spawn"), initializer=_start_worker
    )
    try:
        yield executor
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _start_worker() -> None:
    """Leave Ctrl-C to the parent, and end with it even if it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()
        signal.raise_signal(signal.SIGTERM)


def available_processors() -> int:
    """Processors that this process may use: a container may have fewer than the machine."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1
