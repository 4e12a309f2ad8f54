"""The causes that every nanosecond of the used window is given one of."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

from tb_perfadvisor.trace import Precision


class Cause(Enum):
    """Causes in order of precedence: where several apply, the first one gets the time."""

    COMPUTE_8 = "compute-8"
    COMPUTE_16 = "compute-16"
    COMPUTE_32 = "compute-32"
    COMPUTE_64 = "compute-64"
    COMPUTE_UNKNOWN = "compute-unknown"
    HOST_COMPUTE = "host-compute"
    COMMUNICATION = "communication"
    COPIES = "copies"
    QUEUED = "queued"
    INPUT = "input"
    BETWEEN_STEPS = "between-steps"
    COMPILING = "compiling"
    ALLOCATING = "allocating"
    SYNCHRONIZATION = "synchronization"
    LAUNCHING = "launching"
    FRAMEWORK = "framework"
    PYTHON = "python"
    UNEXPLAINED = "unexplained"


HOST_CAUSED = (
    Cause.SYNCHRONIZATION,
    Cause.LAUNCHING,
    Cause.FRAMEWORK,
    Cause.PYTHON,
    Cause.UNEXPLAINED,
)
"""Idle that the host causes in the middle of a step."""

LABELS: Mapping[Cause, str] = MappingProxyType(
    {
        Cause.COMPUTE_8: "Compute, 8-bit",
        Cause.COMPUTE_16: "Compute, 16-bit",
        Cause.COMPUTE_32: "Compute, 32-bit",
        Cause.COMPUTE_64: "Compute, 64-bit",
        Cause.COMPUTE_UNKNOWN: "Compute, precision unknown",
        Cause.HOST_COMPUTE: "Operators on the host",
        Cause.COMMUNICATION: "Exposed communication",
        Cause.COPIES: "Exposed copies",
        Cause.QUEUED: "Idle, work queued",
        Cause.INPUT: "Waiting for input",
        Cause.BETWEEN_STEPS: "Between steps",
        Cause.COMPILING: "Compiling",
        Cause.ALLOCATING: "Allocating memory",
        Cause.SYNCHRONIZATION: "Inside a synchronization",
        Cause.LAUNCHING: "Launching",
        Cause.FRAMEWORK: "Framework overhead",
        Cause.PYTHON: "Python",
        Cause.UNEXPLAINED: "Unexplained",
    }
)

COMPUTE = (
    Cause.COMPUTE_8,
    Cause.COMPUTE_16,
    Cause.COMPUTE_32,
    Cause.COMPUTE_64,
    Cause.COMPUTE_UNKNOWN,
)
BUSY = (*COMPUTE, Cause.COMMUNICATION, Cause.COPIES)
OF_PRECISION = {
    Precision.BITS_8: Cause.COMPUTE_8,
    Precision.BITS_16: Cause.COMPUTE_16,
    Precision.BITS_32: Cause.COMPUTE_32,
    Precision.BITS_64: Cause.COMPUTE_64,
    Precision.UNKNOWN: Cause.COMPUTE_UNKNOWN,
}
