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
    return collectives_of(signals).without_waiting_ns


def faster_collectives(
    signals: Signals, chosen: Mask, target_ns: Float64 | Int64, basis: Basis = "modeled"
) -> Saving:
    """The saving when some collectives take less time, as far as they are exposed.

    Where ranks are missing, a collective may be waiting for them instead of transferring: what it
    takes too long counts for high, but nothing of it is expected.

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
    is_known = collectives.transfer_ns >= 0
    expected_ns = min(round(float(exposed_ns[is_known].sum())), high_ns)
    saved_ns = np.where(is_known, excess_ns, 0).astype(np.int64)[is_faster]
    then_ns = collectives.duration_ns[is_faster] - saved_ns
    is_on_device = (signals.trace.events.kind[rows] == EventKind.COLLECTIVE).all()
    return Saving(
        expected_ns,
        expected_ns,
        high_ns,
        claims,
        basis,
        (Shorten(rows, then_ns),) if is_on_device and expected_ns else (),
        is_unknown=not is_known[chosen].any(),
        unpriced_ns=high_ns - expected_ns,
    )
