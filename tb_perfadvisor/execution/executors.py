"""Where files are read: in this process, or in others beside it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager

# Starting a process costs what reading one such file does, so each must get two at least.
_LARGE_BYTES = 1_000_000
# Each holds a trace while it reads; more are for those who ask for them.
_MAX_UNASKED = 8


def default_workers(sizes_bytes: Iterable[int]) -> int:
    """How many processes are worth their start for files of these sizes."""
    large = sum(size >= _LARGE_BYTES for size in sizes_bytes)
    return max(1, min(large // 2, processors(), _MAX_UNASKED))


@contextmanager
def processes(workers: int) -> Iterator[Executor | None]:
    """So many processes to work in; None for one, which is this one.

    They are started afresh, never forked: a fork of a process with threads can hang.
    """
    if workers <= 1:
        yield None
        return
    from concurrent.futures import ProcessPoolExecutor

    executor = ProcessPoolExecutor(
        workers, mp_context=multiprocessing.get_context("spawn"), initializer=_begin
    )
    for _ in range(workers):
        executor.submit(_begun)  # or they would start one by one, when there is work
    try:
        yield executor
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _begun() -> None:
    """Nothing: by then a process has begun."""


def _begin() -> None:
    """Leave interrupts to the parent, and import what reads."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # While the parent finds out what to read.
    import tb_perfadvisor.engine.rank_digests
    import tb_perfadvisor.ingest.kineto.reader  # noqa: F401


def _end_with_parent() -> None:
    """End when the parent is killed: the pool's queues would then wait forever."""
    if parent := multiprocessing.parent_process():
        parent.join()
        signal.raise_signal(signal.SIGTERM)


def processors() -> int:
    """Processors that this process may use: a container may have fewer than the machine."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1
