"""Asks NVIDIA's management library about the GPU of this process, now and then.

NVML comes with the driver; `nvidia-ml-py` (the extra `nvml`) calls it. Where either is missing,
everything is unknown.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from tb_perfadvisor.machine.facts import HEAT, POWER_CAP

_HZ_PER_MHZ: Final = 1e6
_THERMAL, _HARDWARE, _BRAKE = HEAT
# NVML_CLOCKS_EVENT_REASON_*, in nvml.h.
_IDLE: Final = 0x1
_REASONS: Final = {POWER_CAP: 0x4, _HARDWARE: 0x8, _THERMAL: 0x20 | 0x40, _BRAKE: 0x80}


class DeviceSampler:
    """Looks at the first GPU that this process computes on."""

    def __init__(self) -> None:
        """Begin; nothing is known before `sample` finds a GPU."""
        self._nvml: Any = None
        self._handle: Any = None
        self._is_missing = False
        self.name = ""
        self.max_clock_hz: float | None = None
        self.power_limit_w: float | None = None

    def sample(self) -> dict[str, float]:
        """What is known now, by the names of `DeviceTimers`, and why the clocks are reduced.

        Empty without NVML, or while this process uses no GPU. An idle GPU lowers its clock for no
        reason that matters, so its clock is left out.
        """
        if self._is_missing or (self._handle is None and not self._finds_device()):
            return {}
        nvml, handle = self._nvml, self._handle
        bits = _known(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
        clock = _known(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM)
        used = _known(nvml.nvmlDeviceGetUtilizationRates, handle)
        memory = _known(nvml.nvmlDeviceGetMemoryInfo, handle)
        power_mw = _known(nvml.nvmlDeviceGetPowerUsage, handle)
        celsius = _known(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
        is_idle = bits is not None and bool(bits & _IDLE)
        values = {
            "utilization": None if used is None else used.gpu / 100,
            "memory_bytes": None if memory is None else memory.used,
            "clock_hz": None if clock is None or is_idle else clock * _HZ_PER_MHZ,
            "power_w": None if power_mw is None else power_mw / 1e3,
            "temperature_c": celsius,
        }
        if bits is not None:
            values |= {reason: float(bool(bits & mask)) for reason, mask in _REASONS.items()}
        return {name: float(value) for name, value in values.items() if value is not None}

    def close(self) -> None:
        """Leave NVML."""
        if self._nvml is not None:
            with suppress(Exception):
                self._nvml.nvmlShutdown()
        self._is_missing, self._handle = True, None

    def _finds_device(self) -> bool:
        if self._nvml is None:
            try:
                import pynvml  # where programs run

                pynvml.nvmlInit()
            except Exception:  # not installed, no driver, or no permission
                self._is_missing = True
                return False
            self._nvml = pynvml
        nvml = self._nvml
        handle = next((each for each in self._handles() if self._is_used(each)), None)
        if handle is None:
            return False
        self._handle = handle
        name = _known(nvml.nvmlDeviceGetName, handle) or ""
        self.name = name.decode() if isinstance(name, bytes) else str(name)
        clock = _known(nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM)
        self.max_clock_hz = None if clock is None else clock * _HZ_PER_MHZ
        limit_mw = _known(nvml.nvmlDeviceGetEnforcedPowerLimit, handle)
        self.power_limit_w = None if limit_mw is None else limit_mw / 1e3
        return True

    def _handles(self) -> list[Any]:
        nvml = self._nvml
        count = _known(nvml.nvmlDeviceGetCount) or 0
        found = [_known(nvml.nvmlDeviceGetHandleByIndex, index) for index in range(count)]
        return [each for each in found if each is not None]

    def _is_used(self, handle: Any) -> bool:
        """Whether this process computes on a GPU, by the driver's list of processes."""
        running = _known(self._nvml.nvmlDeviceGetComputeRunningProcesses, handle) or ()
        return any(each.pid == os.getpid() for each in running)


def _known(call: Callable[..., Any], *arguments: Any) -> Any:
    """What a call of NVML returns; None where the device or the driver does not tell."""
    with suppress(Exception):
        return call(*arguments)
    return None
