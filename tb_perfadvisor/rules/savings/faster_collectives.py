"""What the steps save when collectives get faster or are not needed."""

from __future__ import annotations

import numpy as np

from tb_perfadvisor.rules.finding import Basis, Saving
from tb_perfadvisor.signals import Cause, Signals, collectives_of
from tb_perfadvisor.signals.core.collectives import Mask, exposed_part
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.intervals import total_ns
from tb_perfadvisor.trace.tables import Float64, Int64
from tb_perfadvisor.whatif import Shorten


def time_without_waiting(signals: Signals) -> Int64:
    """The time of each collective in ns, without waiting for other ranks where that is known."""
    collectives = collectives_of(signals)
    is_known = collectives.transfer_ns >= 0
    return np.where(is_known, collectives.transfer_ns, collectives.duration_ns)


def faster_collectives(
    signals: Signals, chosen: Mask, target_ns: Float64 | Int64, basis: Basis = "modeled"
) -> Saving:
    """The saving when some collectives take less time, as far as they are exposed.

    Where ranks are missing, the excess may be waiting for them: low is 0 and expected is half.

    Args:
        signals: The worker's facts.
        chosen: Which of its collectives get faster, shape (collectives,).
        target_ns: How long each takes then, without waiting, shape (collectives,).
        basis: What the targets rest on.
    """
    collectives = collectives_of(signals)
    excess_ns = np.where(chosen, np.maximum(time_without_waiting(signals) - target_ns, 0), 0)
    exposed_ns = np.minimum(excess_ns, collectives.exposed_ns)
    is_faster = exposed_ns > 0
    rows = collectives.row[is_faster]
    claims = exposed_part(signals.trace, rows, signals.attribution.intervals[Cause.COMMUNICATION])
    high_ns = min(round(float(exposed_ns.sum())), total_ns(claims))
    if not (collectives.transfer_ns[chosen] >= 0).all():
        low_ns, expected_ns, saved_ns = 0, high_ns // 2, excess_ns / 2
    else:
        low_ns, expected_ns, saved_ns = high_ns, high_ns, excess_ns
    then_ns = collectives.duration_ns[is_faster] - saved_ns[is_faster].astype(np.int64)
    is_on_device = signals.trace.events.kind[rows] == EventKind.COLLECTIVE
    fix = (Shorten(rows, then_ns),) if is_on_device.all() else ()
    return Saving(low_ns, expected_ns, high_ns, claims, basis, fix)
