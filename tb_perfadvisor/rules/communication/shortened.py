"""The saving of collectives that would take less time, as far as nothing covers them."""

from __future__ import annotations

import numpy as np

from tb_perfadvisor.rules.finding import Basis, Saving
from tb_perfadvisor.signals import Cause, Signals, collectives_of
from tb_perfadvisor.signals.core.collectives import Mask, exposed_part
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.intervals import total_ns
from tb_perfadvisor.trace.tables import Float64, Int64
from tb_perfadvisor.whatif import Shorten


def taken_ns(signals: Signals) -> Int64:
    """What each collective takes without waiting for other ranks, as far as that is known."""
    collectives = collectives_of(signals)
    known = collectives.transfer_ns >= 0
    return np.where(known, collectives.transfer_ns, collectives.duration_ns)


def shortened(
    signals: Signals, chosen: Mask, target_ns: Float64 | Int64, basis: Basis = "modeled"
) -> Saving | None:
    """What steps save if some collectives took less.

    Where ranks are missing the excess may be waiting for them: low is then 0, expected half.

    Args:
        signals: The worker.
        chosen: Which of its collectives; shape (collectives,).
        target_ns: What each of all of them would take; shape (collectives,).
        basis: What the targets rest on.

    Returns:
        The saving; None when nothing of it is exposed.
    """
    collectives = collectives_of(signals)
    taken = taken_ns(signals)
    excess = np.where(chosen, np.maximum(taken - target_ns, 0), 0)
    exposed = np.minimum(excess, collectives.exposed_ns)
    guilty = exposed > 0
    rows = collectives.row[guilty]
    claims = exposed_part(signals.trace, rows, signals.attribution.intervals[Cause.COMMUNICATION])
    high = min(round(float(exposed.sum())), total_ns(claims))
    if high == 0:
        return None
    is_sure = bool((collectives.transfer_ns[chosen] >= 0).all())
    saved = (excess if is_sure else excess / 2)[guilty].astype(np.int64)
    on_device = signals.trace.events.kind[rows] == EventKind.COLLECTIVE
    fix = (Shorten(rows, collectives.duration_ns[guilty] - saved),) if on_device.all() else ()
    return Saving(high if is_sure else 0, high if is_sure else high // 2, high, claims, basis, fix)
