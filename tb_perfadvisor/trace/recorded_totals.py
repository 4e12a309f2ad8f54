"""What a recorder had added up before it wrote its files."""

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
    """Summed durations: streams overlap, so this may exceed busy time."""


class OperatorTotal(Struct, frozen=True):
    """All executions of one operator, or of one stage of the input pipeline."""

    name: str
    type: str
    """The operator's type (`Conv2D`), or what a stage of the input pipeline does."""
    is_on_device: bool
    count: int
    total_ns: int
    self_ns: int
    """Without the operators inside it."""


class Aspect(Enum):
    """What sums of a step can set apart; what they don't is within others, or not there."""

    INPUT = "input"
    """Waiting for input."""
    COMMUNICATION = "communication"
    COPIES = "copies"
    HOST = "host"
    """What the host did while the device idled."""


class Totals(Struct, frozen=True):
    """Sums of the recorder's own, over all that it recorded on all devices.

    A trace has them when its file keeps nothing else: its events then are one per step and
    cause, as long as their sum, end to end in an order that nobody knows.
    """

    shows: frozenset[Aspect]
    """What is set apart, be it no time at all."""
    precision: Mapping[Precision, float] | None = None
    """Shares of device compute time."""
    kernels: tuple[KernelTotal, ...] = ()
    """The costliest first."""
    operators: tuple[OperatorTotal, ...] = ()
    input_stages: tuple[OperatorTotal, ...] = ()
    """Stages of the input pipeline, the costliest first."""
    peak_allocated_bytes: int | None = None
    """Of the fullest device."""
    matrix_unit_share: float | None = None
    """Of the peak of the TPU's matrix units."""
    remedy: str = ""
    """How to record events in place of sums."""
