"""Chooses where files are read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager

from msgspec import Struct

from tb_perfadvisor.execution.limits import NO_LIMITS, Limits

# A cluster returns only summaries of ranks, so it may read many files at the same time.
_MAX_PENDING_IN_CLUSTER = 256
_MAX_PENDING_PER_PROCESS = 2
# Starting a process takes as long as reading a file of this size, so each gets two at least.
_LARGE_BYTES = 1_000_000
# Each process holds one trace; users who have the memory can ask for more processes.
_MAX_WORKERS = 8


class Execution(Struct, frozen=True):
    """Where files are read."""

    executor: Executor | None = None
    """None reads each file in this process when its capture's turn comes."""
    max_pending_files: int = 0
    """Files of later captures that may be read while one capture is analyzed."""


IN_PROCESS = Execution()


@contextmanager
def open_execution(
    sizes_bytes: Iterable[int] = (),
    *,
    workers: int | None = None,
    scheduler: str | None = None,
    limits: Limits = NO_LIMITS,
) -> Iterator[Execution]:
    """Start what reads files, and stop it at the end of the context.

    Args:
        sizes_bytes: Sizes of the files to read; they decide how many processes are worth their
            start if `workers` is not given.
        workers: Number of processes; 1 reads in this process, and so does a system that has no
            semaphores or file descriptors for more.
        limits: The limits of each process.
        scheduler: Address of a Dask scheduler, whose workers read then: `tcp://host:8786`.

    Raises:
        UsageError: When the cluster cannot be used.
    """
    if scheduler is not None:
        from tb_perfadvisor.execution.dask_cluster import open_cluster

        with open_cluster(scheduler) as executor:
            yield Execution(executor, _MAX_PENDING_IN_CLUSTER)
        return
    if workers is None:
        workers = worthwhile_workers(sizes_bytes)
    if workers <= 1:
        yield IN_PROCESS
        return
    from tb_perfadvisor.execution.process_pool import open_pool

    with ExitStack() as stack:
        try:
            executor = stack.enter_context(open_pool(workers, limits))
        except (ImportError, OSError):  # the system allows no pool
            execution = IN_PROCESS
        else:
            execution = Execution(executor, _MAX_PENDING_PER_PROCESS * workers)
        yield execution


def worthwhile_workers(sizes_bytes: Iterable[int]) -> int:
    """How many processes are worth their start for files of these sizes; 1 for none."""
    large = sum(size >= _LARGE_BYTES for size in sizes_bytes)
    return max(1, min(large // 2, available_processors(), _MAX_WORKERS))


def available_processors() -> int:
    """Processors that this process may use: a container may have fewer than the machine."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1
