"""How long an operator takes, on the host and on the device, and what new pages of memory cost."""

from __future__ import annotations

import mmap
import os
import platform
import time
from statistics import median
from typing import Any, Final, NamedTuple

_SMALLEST_NS: Final = 2_000
"""The shortest kernels take about that long."""
_TRIALS: Final = 9


class Took(NamedTuple):
    """The time of one operator."""

    host_ns: int
    device_ns: int


class HostClock:
    """Of programs on the CPU alone."""

    def __init__(self) -> None:
        """Nothing runs yet."""
        self._began_ns = 0

    def begin(self) -> None:
        """An operator begins."""
        self._began_ns = time.perf_counter_ns()

    def end(self) -> Took:
        """It has returned."""
        return Took(time.perf_counter_ns() - self._began_ns, 0)


class DeviceClock(HostClock):
    """Of programs with CUDA or ROCm: an operator begins when the device has done all before it."""

    def __init__(self) -> None:
        """Measure what passes on the device while an operator of no size is called."""
        import torch  # which the program has imported

        super().__init__()
        self._stream = torch.cuda.current_stream
        self._start: Any = torch.cuda.Event(enable_timing=True)
        self._end: Any = torch.cuda.Event(enable_timing=True)
        self._floor_ns = 0
        nothing = torch.zeros(1, device="cuda")
        times = []
        for _ in range(_TRIALS):
            self.begin()
            nothing.add_(1)
            times.append(self.end().device_ns)
        self._floor_ns = max(int(median(times)) - _SMALLEST_NS, 0)

    def begin(self) -> None:
        """An operator begins."""
        self._stream().synchronize()
        self._start.record()
        super().begin()

    def end(self) -> Took:
        """It has returned; waits for the device."""
        host_ns = super().end().host_ns
        self._end.record()
        self._end.synchronize()
        passed_ns = int(self._start.elapsed_time(self._end) * 1e6)
        return Took(host_ns, max(passed_ns - self._floor_ns, 0))


# glibc gives large blocks back to the system when they are freed, so that the next need new pages.

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
