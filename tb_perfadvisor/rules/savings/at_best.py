"""What a change may save beyond what it is about, if all goes well."""

from __future__ import annotations

from msgspec.structs import replace

from tb_perfadvisor.rules.finding import Saving
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.device.device_work import exclusive_time
from tb_perfadvisor.trace.intervals import intersect, join, minus, total_ns, union
from tb_perfadvisor.trace.tables import Int32, Int64


def at_best_also(signals: Signals, saving: Saving, rows: Int32, gone_ns: Int64) -> Saving:
    """Add parts of other device events to the high end of a saving.

    Only time in which nothing else runs on the device is added, and claimed.

    Args:
        signals: The worker's facts.
        saving: The saving.
        rows: Other device events, shape (n,).
        gone_ns: How much of each is saved at best, shape (n,).
    """
    if not rows.size:
        return saving
    start_ns = signals.trace.events.start_ns[rows]
    gone = intersect(exclusive_time(signals, rows), union(start_ns, start_ns + gone_ns))
    more = minus(gone, saving.claims)
    return replace(
        saving, high_ns=saving.high_ns + total_ns(more), claims=join(saving.claims, more)
    )
