"""The causes that every nanosecond of the used window is given one of."""

from __future__ import annotations

from enum import Enum

from tb_perfadvisor.trace import Precision


class Cause(Enum):
    """Causes in order of precedence: where several apply, the first one gets the time.

    Each has its id, its label, and its colors in the light and the dark theme. A new cause is a
    line here; `python scripts/causes.py` then tells the tab, whose tests check that its colors can
    be told apart from the others.
    """

    COMPUTE_8 = "compute-8", "Compute, 8-bit", "#2996ff", "#81e6fe"
    COMPUTE_16 = "compute-16", "Compute, 16-bit", "#2b98cc", "#6abaff"
    COMPUTE_32 = "compute-32", "Compute, 32-bit", "#2e62d2", "#2595e3"
    COMPUTE_64 = "compute-64", "Compute, 64-bit", "#132c77", "#5681be"
    COMPUTE_UNKNOWN = "compute-unknown", "Compute, precision unknown", "#394461", "#afbfd8"
    HOST_COMPUTE = "host-compute", "Operators on the host", "#2e62d2", "#2595e3"
    COMMUNICATION = "communication", "Exposed communication", "#6435a3", "#975cfd"
    COPIES = "copies", "Exposed copies", "#03655b", "#5de3bb"
    NOT_RECORDED = "not-recorded", "Not recorded", "#202020", "#f0f0f0"
    QUEUED = "queued", "Idle, work queued", "#8a93a2", "#78808e"
    INPUT = "input", "Waiting for input", "#d22e2e", "#fe320d"
    BETWEEN_STEPS = "between-steps", "Between steps", "#4c2d15", "#c58173"
    COMPILING = "compiling", "Compiling", "#b738a3", "#e43ebf"
    ALLOCATING = "allocating", "Allocating memory", "#556f0f", "#c4d818"
    SYNCHRONIZATION = "synchronization", "Inside a synchronization", "#f46603", "#ff8014"
    LAUNCHING = "launching", "Launching", "#9d9347", "#f8db85"
    FRAMEWORK = "framework", "Framework overhead", "#4c9674", "#76c26d"
    PYTHON = "python", "Python", "#584901", "#90803c"
    UNEXPLAINED = "unexplained", "Unexplained", "#707276", "#9a9fa1"

    label: str
    """For users."""
    light: str
    """`#rrggbb`, on a light ground."""
    dark: str
    """On a dark ground."""

    # The defaults are for mypy only, which takes `Cause("input")` for a call of this.
    def __new__(cls, id: str, label: str = "", light: str = "", dark: str = "") -> Cause:
        """Make a member whose value is its id."""
        cause = object.__new__(cls)
        cause._value_ = id
        cause.label, cause.light, cause.dark = label, light, dark
        return cause


HOST_CAUSED = (
    Cause.SYNCHRONIZATION,
    Cause.LAUNCHING,
    Cause.FRAMEWORK,
    Cause.PYTHON,
    Cause.UNEXPLAINED,
)
"""Idle that the host causes in the middle of a step."""

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
