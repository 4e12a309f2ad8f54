"""How long an operator takes: on the host, and on the device that it gives work to."""

from __future__ import annotations

import time
from statistics import median
from typing import Any, Final, NamedTuple

import torch

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
        super().__init__()
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
        torch.cuda.current_stream().synchronize()
        self._start.record()
        super().begin()

    def end(self) -> Took:
        """It has returned; waits for the device."""
        host_ns = super().end().host_ns
        self._end.record()
        self._end.synchronize()
        passed_ns = int(self._start.elapsed_time(self._end) * 1e6)
        return Took(host_ns, max(passed_ns - self._floor_ns, 0))
