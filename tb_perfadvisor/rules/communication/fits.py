"""Latency and bandwidth of the collectives, as their sizes and times tell."""

from __future__ import annotations

from collections.abc import Sequence

from tb_perfadvisor.rules.communication.shortened import taken_ns
from tb_perfadvisor.rules.finding import Column, Table
from tb_perfadvisor.signals import Signals, collectives_of
from tb_perfadvisor.signals.ranks.links import link_bandwidth_bytes_per_s
from tb_perfadvisor.signals.ranks.messages import fit_of, wire_bytes


def fits(signals: Signals, operations: Sequence[str]) -> Table | None:
    """What one message costs however small it is, and how fast the bytes of large ones pass.

    Args:
        signals: The worker.
        operations: Which to look at.

    Returns:
        A row for each whose sizes differ enough to tell the two apart; None for none.
    """
    taken, wire = taken_ns(signals), wire_bytes(signals)
    found = [fit_of(collectives_of(signals), taken, wire, one) for one in operations]
    rows = tuple(
        (
            fit.operation,
            fit.latency_ns,
            fit.bandwidth_bytes_per_s,
            link_bandwidth_bytes_per_s(signals),
        )
        for fit in found
        if fit is not None
    )
    if not rows:
        return None
    return Table(
        "Latency and bandwidth, from the quickest of each size",
        (
            Column("operation", "Operation"),
            Column("latency_ns", "Latency", "ns"),
            Column("bandwidth", "Bandwidth", "bytes/s"),
            Column("link", "Link", "bytes/s"),
        ),
        rows,
    )
