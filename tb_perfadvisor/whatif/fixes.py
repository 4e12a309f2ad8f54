"""What a change does to a program: small values that rules return with their savings.

Each says what would be gone, shorter or no longer waited for; the simulation works out what
that is worth. Fixes compose: several are applied together.
"""

from __future__ import annotations

from msgspec import Struct

from tb_perfadvisor.trace.intervals import Intervals, union
from tb_perfadvisor.trace.tables import Int32, Int64


class Remove(Struct, frozen=True):
    """The thread that runs the steps does no longer what it did in these intervals.

    Time that the thread spends waiting for the device in them is not saved: the device still
    needs it.
    """

    intervals: Intervals
    is_pace: bool = False
    """Whether it is launching that is gone: what recording cost the host is then no gain."""


class Async(Struct, frozen=True):
    """Calls no longer wait for the device."""

    rows: Int32
    """Synchronizations, or launches of blocking copies."""


class Shorten(Struct, frozen=True):
    """Device events take less time."""

    rows: Int32
    duration_ns: Int64
    """What each then takes; shape (rows,)."""


class Overlap(Struct, frozen=True):
    """Device events run beside all others: they wait for none, and none waits for them.

    They keep their launches and their order among themselves.
    """

    rows: Int32


Fix = Remove | Async | Shorten | Overlap


def shrink(start_ns: Int64, end_ns: Int64, to_ns: int) -> Remove:
    """Each of some stretches of host work takes no longer than `to_ns`."""
    return Remove(union(start_ns + to_ns, end_ns))
