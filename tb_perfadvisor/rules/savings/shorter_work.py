"""Savings of advice that makes work on the device shorter, or does without it."""

from __future__ import annotations

import numpy as np

from tb_perfadvisor.rules.base import Basis, Saving
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.device.device_work import exclusive_time, exclusive_time_of_each
from tb_perfadvisor.trace.intervals import total_ns
from tb_perfadvisor.trace.tables import Int32, Int64
from tb_perfadvisor.whatif import Shorten


def shorter_work(
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
    the engine re-times the steps with the shorter events, so that a device that waits for the
    host saves nothing by being faster.

    Args:
        signals: The worker's facts.
        rows: Device events, shape (n,).
        then_ns: What each is expected to take, (n,); 0 is gone.
        basis: What the estimate rests on.
        least_then_ns: What each takes at best; nothing, if it is not given.
        most_then_ns: What each takes at worst; as long as it does now, if it is not given.
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


def halfway(signals: Signals, rows: Int32, best_ns: Int64) -> Saving:
    """The saving when device events get nearer to the best that a model allows each.

    At best they reach it, half of the way is expected, and for sure there is nothing.

    Args:
        signals: The worker's facts.
        rows: Device events, shape (n,).
        best_ns: What each would take, (n,).
    """
    then_ns = (best_ns + signals.trace.events.duration_ns[rows]) // 2
    return shorter_work(signals, rows, then_ns, basis="modeled", least_then_ns=best_ns)


def _saved_ns(now_ns: Int64, then_ns: Int64, inside_ns: Int64, most_ns: int) -> int:
    """What is saved of the claimed time: of each event, its share of what lies in it."""
    saved_ns = inside_ns * np.maximum(now_ns - then_ns, 0) // np.maximum(now_ns, 1)
    # Events that run beside each other share their time.
    return min(int(saved_ns.sum()), most_ns)
