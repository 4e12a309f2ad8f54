"""The content of a result file, independent of its format."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from math import isfinite
from types import MappingProxyType

from msgspec import Struct, field

from tb_perfadvisor.trace import Aspect, KernelTotal, OperatorTotal, Precision

# Longer steps are damage. 64 bits hold a million such steps in nanoseconds.
_LONGEST_MS = 3_600_000.0
MAX_STEPS = 1_000_000
# The largest pods have about ten thousand cores.
_MAX_DEVICES = 1 << 16


class StepPart(Enum):
    """The parts of a step's time, in all generations of the profiler.

    Idle time is not a part: it is the rest of the step.
    """

    INPUT = "input"
    """The host waits for input, or a TPU core in infeed."""
    COMPILE = "compile"
    LAUNCH = "launch"
    """The host prepares launches while the device waits."""
    HOST_COMPUTE = "host-compute"
    TO_DEVICE = "to-device"
    COMPUTE = "compute"
    COLLECTIVES = "collectives"
    WAITING = "waiting"
    """Waiting for other cores in collectives."""
    BETWEEN_CORES = "between-cores"
    """Sends and receives between cores."""
    DEVICE_TO_DEVICE = "device-to-device"
    OUTPUT = "output"


class StepSums(Struct, frozen=True):
    """The duration of one step and its exclusive parts."""

    number: int
    duration_ms: float
    parts_ms: Mapping[StepPart, float]


class Figure(Struct, frozen=True):
    """A share of the whole recording that a file states."""

    label: str
    """The text after the share in a sentence, such as `host idle`."""
    share: float


class Contents(Struct, frozen=True, kw_only=True):
    """The content of a file; None or empty if it is missing."""

    steps: tuple[StepSums, ...] = ()
    stated_mean_ms: float | None = None
    """The mean step time that the file states."""
    shows: frozenset[Aspect] = frozenset()
    """The parts of a step that the file lists separately."""
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
    """Memory limit of the device's allocator."""
    messages: tuple[str, ...] = field(default=())
    """The profiler's errors and warnings."""

    @property
    def mean_ms(self) -> float | None:
        """The mean step time; None without steps."""
        if not self.steps:
            return None
        return sum(step.duration_ms for step in self.steps) / len(self.steps)


def make_step(
    number: int, parts_ms: Mapping[StepPart, float], *, idle_ms: float = 0.0, step_ms: float = 0.0
) -> StepSums | None:
    """Build a step; None if its times are empty or impossible.

    The number is negative if unknown. `parts_ms` has the time of each part, including zeros, and
    `idle_ms` what the file calls idle or unknown. `step_ms` is the duration of the step, or 0 if
    the file only has the parts.
    """
    values = [*parts_ms.values(), idle_ms, step_ms]
    if not all(isfinite(value) and 0 <= value <= _LONGEST_MS for value in values):
        return None
    parts = {part: value for part, value in parts_ms.items() if value >= _SHORTEST_MS}
    whole = step_ms or sum(parts.values()) + idle_ms
    if whole < _SHORTEST_MS:
        return None
    return StepSums(number, whole, MappingProxyType(parts))


# Old profilers write tiny values such as 2.2e-308 for 0.
_SHORTEST_MS = 5e-7


def whole_ns(value: float, ns_per_unit: float) -> int:
    """A duration in nanoseconds; 0 if the value is impossible."""
    ns = value * ns_per_unit
    return round(ns) if isfinite(ns) and 0 <= ns < 2.0**62 else 0


def device_count(count: float | None) -> int | None:
    """A number of devices; None if the value is impossible."""
    return int(count) if count is not None and 1 <= count <= _MAX_DEVICES else None


def share(percent: float | None) -> float | None:
    """A percentage as a share; None if the value is impossible."""
    if percent is None or not isfinite(percent) or not 0 <= percent <= 100:
        return None
    return percent / 100
