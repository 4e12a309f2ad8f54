"""Sums of a recorder that writes totals instead of events."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from msgspec import Struct

from tb_perfadvisor.trace.kinds import Precision


class KernelTotal(Struct, frozen=True):
    """All executions of one kernel."""

    name: str
    family: str
    """A `KernelFamily`'s name in lower case."""
    count: int
    total_ns: int
    """Sum of the durations; it may exceed busy time because streams overlap."""


class OperatorTotal(Struct, frozen=True):
    """All executions of one operator or input pipeline stage."""

    name: str
    type: str
    """The operator's type (`Conv2D`) or the category of the input pipeline stage."""
    is_on_device: bool
    count: int
    total_ns: int
    self_ns: int
    """Time without nested operators."""


class Aspect(Enum):
    """Parts of a step's time that a recorder may list separately.

    Time of a part that it does not list is contained in other parts, or missing.
    """

    INPUT = "input"
    """Waiting for input."""
    COMMUNICATION = "communication"
    COPIES = "copies"
    HOST = "host"
    """Activity of the host while the device was idle."""


class Totals(Struct, frozen=True):
    """The recorder's sums over its whole recording, on all devices.

    A trace has totals only if its file has no events. The trace then has one event per step and
    part, laid end to end in arbitrary order.
    """

    shows: frozenset[Aspect]
    """The parts that are listed separately, even if their time is zero."""
    precision: Mapping[Precision, float] | None = None
    """Share of each precision in device compute time."""
    kernels: tuple[KernelTotal, ...] = ()
    """In descending order of time."""
    operators: tuple[OperatorTotal, ...] = ()
    input_stages: tuple[OperatorTotal, ...] = ()
    """In descending order of self time."""
    peak_allocated_bytes: int | None = None
    """On the device with the highest peak."""
    matrix_unit_share: float | None = None
    """Share of the peak FLOP rate of a TPU's matrix units."""
    remedy: str = ""
    """How to record events instead of sums."""
