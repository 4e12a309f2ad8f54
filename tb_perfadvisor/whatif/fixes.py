"""What a change does to a program: small values that rules return with their savings.

Each says what would disappear, get shorter or no longer be waited for. The replay computes what
that is worth. Several fixes can be applied together.
"""

from __future__ import annotations

from msgspec import Struct

from tb_perfadvisor.trace.intervals import Intervals, union
from tb_perfadvisor.trace.tables import Int32, Int64


class Remove(Struct, frozen=True, tag=True):
    """The thread that runs the steps no longer does what it did in these intervals.

    Time in which the thread waits for the device is not saved: the device still needs it.
    """

    intervals: Intervals
    is_launching: bool = False
    """Whether launching is removed. Then what recording cost the host is not a gain."""


class Async(Struct, frozen=True, tag=True):
    """Calls no longer wait for the device."""

    rows: Int32
    """Synchronizations, or launches of blocking copies."""


class Shorten(Struct, frozen=True, tag=True):
    """Device events take less time."""

    rows: Int32
    duration_ns: Int64
    """The new duration of each; shape (rows,)."""


class Overlap(Struct, frozen=True, tag=True):
    """Device events overlap all other device work: neither waits for the other.

    They keep their launches and their order among themselves.
    """

    rows: Int32


Fix = Remove | Async | Shorten | Overlap


def shrink(start_ns: Int64, end_ns: Int64, to_ns: int) -> Remove:
    """Limit each stretch of host work to `to_ns`."""
    return Remove(union(start_ns + to_ns, end_ns))
