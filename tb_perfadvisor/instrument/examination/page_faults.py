"""Counts pages of memory that the system has to clear, and what that costs.

glibc gives large blocks back to the system when they are freed, so that the next need new pages.
"""

from __future__ import annotations

import mmap
import os
import platform
import time

try:
    import resource
except ImportError:  # on Windows
    resource = None  # type: ignore[assignment]


def thread_faults() -> int:
    """How many pages this thread has touched first; other threads touch theirs at the same time."""
    thread = getattr(resource, "RUSAGE_THREAD", None)  # only Linux tells
    return 0 if thread is None else resource.getrusage(thread).ru_minflt


def fault_ns() -> float | None:
    """What it takes to touch a new page and give it back; None unless glibc's allocator is used."""
    import numpy as np

    is_replaced = "malloc" in os.environ.get("LD_PRELOAD", "")  # by jemalloc, tcmalloc, mimalloc
    if platform.libc_ver()[0] != "glibc" or is_replaced:
        return None
    trials = []
    for _ in range(3):
        before, began_ns = thread_faults(), time.perf_counter_ns()
        with mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
            pages = np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE]
            pages[:] = 1
            del pages
        passed_ns, faults = time.perf_counter_ns() - began_ns, thread_faults() - before
        trials.append(passed_ns / max(faults, 1))
    return min(trials)
