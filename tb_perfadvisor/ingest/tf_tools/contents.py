"""What one result file holds, whatever its format."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from math import isfinite
from types import MappingProxyType

from msgspec import Struct, field

from tb_perfadvisor.trace import Aspect, KernelTotal, OperatorTotal, Precision

# A step of an hour is no step; 64 bits hold a million of them in nanoseconds.
_LONGEST_MS = 3_600_000.0
MAX_STEPS = 1_000_000
# Cores of the largest pods number some ten thousand.
_MAX_DEVICES = 1 << 16


class Part(Enum):
    """What a step's time is split into, by all generations of the profiler together.

    Idle time that a file names as such is no part: it is what the parts leave of the step.
    """

    INPUT = "input"
    """The host waits for input, or a TPU core in infeed."""
    COMPILE = "compile"
    LAUNCH = "launch"
    """The host prepares what the device waits for."""
    HOST_COMPUTE = "host-compute"
    TO_DEVICE = "to-device"
    COMPUTE = "compute"
    COLLECTIVES = "collectives"
    WAITING = "waiting"
    """In collectives, for other cores."""
    BETWEEN_CORES = "between-cores"
    """Sends and receives between cores."""
    DEVICE_TO_DEVICE = "device-to-device"
    OUTPUT = "output"


class StepSums(Struct, frozen=True):
    """One step: its duration, and the exclusive parts of it."""

    number: int
    duration_ms: float
    parts_ms: Mapping[Part, float]


class Figure(Struct, frozen=True):
    """A share that a file states of the whole recording."""

    label: str
    """What follows the share in a sentence: `host idle`."""
    share: float


class Contents(Struct, frozen=True, kw_only=True):
    """What a file holds; None or empty is what it does not."""

    steps: tuple[StepSums, ...] = ()
    stated_mean_ms: float | None = None
    """The mean step as the file itself states it."""
    shows: frozenset[Aspect] = frozenset()
    """What the steps set apart."""
    device_type: str = ""
    device_count: int | None = None
    precision: Mapping[Precision, float] | None = None
    matrix_unit_share: float | None = None
    figures: tuple[Figure, ...] = ()
    input_stages: tuple[OperatorTotal, ...] = ()
    operators: tuple[OperatorTotal, ...] = ()
    kernels: tuple[KernelTotal, ...] = ()
    peak_allocated_bytes: int | None = None
    memory_bytes: int | None = None
    """What the device's allocator may take."""
    messages: tuple[str, ...] = field(default=())
    """Errors and warnings of the profiler."""

    @property
    def mean_ms(self) -> float | None:
        """The mean step; None without steps."""
        if not self.steps:
            return None
        return sum(step.duration_ms for step in self.steps) / len(self.steps)


def make_step(
    number: int, parts_ms: Mapping[Part, float], *, idle_ms: float = 0.0, step_ms: float = 0.0
) -> StepSums | None:
    """A step from what a file says of it; None when it says nothing that can be.

    Args:
        number: Of the step; negative when unknown.
        parts_ms: The parts, those of no time included.
        idle_ms: What the file itself calls idle or unknown.
        step_ms: The step's duration; 0 when the file gives only the parts.
    """
    values = [*parts_ms.values(), idle_ms, step_ms]
    if not all(isfinite(value) and 0 <= value <= _LONGEST_MS for value in values):
        return None
    parts = {part: value for part, value in parts_ms.items() if value >= _SHORTEST_MS}
    whole = step_ms or sum(parts.values()) + idle_ms
    if whole < _SHORTEST_MS:
        return None
    return StepSums(number, whole, MappingProxyType(parts))


# Below half a nanosecond a value is how an old profiler writes 0 (2.2e-308).
_SHORTEST_MS = 5e-7


def whole_ns(value: float, ns_per_unit: float) -> int:
    """A duration in nanoseconds; 0 where the value cannot be one."""
    ns = value * ns_per_unit
    return round(ns) if isfinite(ns) and 0 <= ns < 2.0**62 else 0


def device_count(count: float | None) -> int | None:
    """A number of devices; None where it cannot be one."""
    return int(count) if count is not None and 1 <= count <= _MAX_DEVICES else None


def share(percent: float | None) -> float | None:
    """A percentage as a share; None where it cannot be one."""
    if percent is None or not isfinite(percent) or not 0 <= percent <= 100:
        return None
    return percent / 100
