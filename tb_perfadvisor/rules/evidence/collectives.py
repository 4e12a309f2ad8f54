"""Tables and lists of collectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tb_perfadvisor.rules.evidence.tables import event_count
from tb_perfadvisor.rules.finding import Cell, Column, Events, Table, costliest
from tb_perfadvisor.rules.savings.faster_collectives import time_without_waiting
from tb_perfadvisor.signals import Signals, collectives_of
from tb_perfadvisor.signals.core.collectives import Mask
from tb_perfadvisor.signals.ranks.collective_costs import fit_of, wire_bytes
from tb_perfadvisor.signals.ranks.links import link_bandwidth_bytes_per_s


def most_exposed(title: str, signals: Signals, chosen: Mask) -> Events:
    """Some collectives, those with the longest exposed time first.

    Args:
        title: Title of the list.
        signals: The worker's facts.
        chosen: Which of its collectives, shape (collectives,).
    """
    collectives = collectives_of(signals)
    return costliest(title, signals.worker, collectives.row[chosen], collectives.exposed_ns[chosen])


def collective_totals(
    title: str,
    signals: Signals,
    groups: Mapping[str, Mask],
    *,
    by: Column | None = None,
    has_bytes: bool = False,
) -> Table:
    """Number, duration and exposed time of some collectives, and their bytes if asked for.

    Args:
        title: Title of the table.
        signals: The worker's facts.
        groups: The collectives of each row by its name, shape (collectives,) each.
        by: The column of the names; by default there is none.
        has_bytes: Whether to show bytes.
    """
    collectives = collectives_of(signals)

    def cells(name: str, chosen: Mask) -> tuple[Cell, ...]:
        sizes = collectives.size_bytes[chosen]
        size_bytes = int(sizes.sum()) if (sizes >= 0).all() else None
        return (
            *((name,) if by else ()),
            int(chosen.sum()),
            *((size_bytes,) if has_bytes else ()),
            int(collectives.duration_ns[chosen].sum()),
            int(collectives.exposed_ns[chosen].sum()),
        )

    columns = (
        *((by,) if by else ()),
        Column("count", "Count", "count"),
        *((Column("size_bytes", "Bytes", "bytes"),) if has_bytes else ()),
        Column("duration_ns", "Duration", "ns"),
        Column("exposed_ns", "Exposed", "ns"),
    )
    return Table(title, columns, tuple(cells(*group) for group in groups.items()))


def latency_and_bandwidth(signals: Signals, operations: Sequence[str]) -> tuple[Table, ...]:
    """The fixed cost of a message, and the rate at which large messages move.

    Args:
        signals: The worker's facts.
        operations: Operations to look at.

    Returns:
        A row for each operation whose sizes differ enough to tell the two apart; no table
        without any.
    """
    taken_ns, wire = time_without_waiting(signals), wire_bytes(signals)
    fits = [fit_of(collectives_of(signals), taken_ns, wire, name) for name in operations]
    rows = tuple(
        (
            fit.operation,
            fit.latency_ns,
            fit.bandwidth_bytes_per_s,
            link_bandwidth_bytes_per_s(signals),
        )
        for fit in fits
        if fit is not None
    )
    if not rows:
        return ()
    table = Table(
        "Latency and bandwidth, from the fastest message of each size",
        (
            Column("operation", "Operation"),
            Column("latency_ns", "Latency", "ns"),
            Column("bandwidth", "Bandwidth", "bytes/s"),
            Column("link", "Link bandwidth", "bytes/s"),
        ),
        rows,
    )
    return (table,)


def collectives_by_operation(signals: Signals) -> Table:
    """The collectives of the used window by operation, the most exposed first."""
    collectives = collectives_of(signals)
    rows: list[tuple[str, int | None, int | None, int, int]] = []
    for operation in sorted(collectives.operation.texts):
        is_operation = collectives.of(operation)
        whole = is_operation & ~collectives.is_start
        sizes = collectives.size_bytes[whole]
        rows.append(
            (
                operation,
                event_count(signals.trace, int(whole.sum())),
                int(sizes[sizes >= 0].sum()) if (sizes >= 0).all() else None,
                int(collectives.duration_ns[is_operation].sum()),
                int(collectives.exposed_ns[is_operation].sum()),
            )
        )
    ranked = sorted(rows, key=lambda row: -row[4])
    return Table(
        "Collectives in the analyzed steps",
        (
            Column("operation", "Operation"),
            Column("count", "Count", "count"),
            Column("size_bytes", "Bytes", "bytes"),
            Column("duration_ns", "Duration", "ns"),
            Column("exposed_ns", "Exposed", "ns"),
        ),
        tuple(ranked),
    )
