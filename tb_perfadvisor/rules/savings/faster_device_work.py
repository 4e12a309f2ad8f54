"""What the steps save when work on the device gets faster or is not needed."""

from __future__ import annotations

import numpy as np

from tb_perfadvisor.rules.finding import Basis, Saving
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.device.device_work import exclusive_time, exclusive_time_of_each
from tb_perfadvisor.trace.intervals import total_ns
from tb_perfadvisor.trace.tables import Int32, Int64
from tb_perfadvisor.whatif import Shorten

_EXACT_NS = 2**31
"""Products of shorter times fit into 64 bits. Two seconds are much for one event."""


def faster_device_work(
    signals: Signals,
    rows: Int32,
    then_ns: Int64,
    *,
    basis: Basis,
    least_then_ns: Int64 | None = None,
    most_then_ns: Int64 | None = None,
) -> Saving:
    """The saving when device events take less time.

    Only time in which nothing else runs on the device is claimed. Where the profile allows it,
    the engine replays the steps with the shorter events, so that a faster device saves nothing
    while it waits for the host.

    Args:
        signals: The worker's facts.
        rows: Device events, shape (n,).
        then_ns: How long each is expected to take, shape (n,); 0 if it is not needed.
        basis: What the estimate rests on.
        least_then_ns: How long each takes at best; by default 0.
        most_then_ns: How long each takes at worst; by default as long as now.
    """
    claims = exclusive_time(signals, rows)
    now_ns = signals.trace.events.duration_ns[rows]
    then_ns = np.minimum(then_ns, now_ns)
    least = np.zeros_like(now_ns) if least_then_ns is None else least_then_ns
    most = now_ns if most_then_ns is None else most_then_ns
    inside_ns = exclusive_time_of_each(signals, rows, claims)
    most_ns = total_ns(claims)
    expected_ns = _saved_ns(now_ns, then_ns, inside_ns, most_ns)
    return Saving(
        min(_saved_ns(now_ns, most, inside_ns, most_ns), expected_ns),
        expected_ns,
        max(_saved_ns(now_ns, least, inside_ns, most_ns), expected_ns),
        claims,
        basis,
        (Shorten(rows, then_ns),),
    )


def halfway_to_best(signals: Signals, rows: Int32, best_ns: Int64) -> Saving:
    """The saving when device events come closer to the best time that a model allows.

    High is the best time, expected is half of the way to it, low is 0.

    Args:
        signals: The worker's facts.
        rows: Device events, shape (n,).
        best_ns: The best time of each, shape (n,).
    """
    then_ns = (best_ns + signals.trace.events.duration_ns[rows]) // 2
    return faster_device_work(signals, rows, then_ns, basis="modeled", least_then_ns=best_ns)


def _saved_ns(now_ns: Int64, then_ns: Int64, inside_ns: Int64, most_ns: int) -> int:
    """What is saved of the claimed time: each event saves in proportion to its part in it."""
    whole_ns, saved_ns = np.maximum(now_ns, 1), np.maximum(now_ns - then_ns, 0)
    if int(whole_ns.max(initial=0)) < _EXACT_NS:
        saved_ns = inside_ns * saved_ns // whole_ns
    else:
        saved_ns = (inside_ns * (saved_ns / whole_ns)).astype(np.int64)
    # Events that run at the same time share it.
    return min(int(saved_ns.sum()), most_ns)
