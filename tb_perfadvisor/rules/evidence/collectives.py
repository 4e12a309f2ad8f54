"""Tables and lists of collectives."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tb_perfadvisor.rules.amounts import in_analyzed
from tb_perfadvisor.rules.evidence.tables import event_count
from tb_perfadvisor.rules.finding import Cell, Column, Events, Table, costliest
from tb_perfadvisor.signals import Signals, collectives_of
from tb_perfadvisor.signals.core.collectives import Mask
from tb_perfadvisor.signals.ranks.collective_costs import (
    slow_messages,
)
from tb_perfadvisor.signals.ranks.exposed_communication import exposed_once_ns, has_all_ranks
from tb_perfadvisor.units import format_duration, format_rate, format_share


def most_exposed(title: str, signals: Signals, chosen: Mask) -> Events:
    """Some collectives, those with the longest exposed time first.

    `chosen` has shape (collectives,).
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

    `groups` has the collectives of each row by its name, shape (collectives,) each. `by` is the
    column of the names; by default there is none.
    """
    collectives = collectives_of(signals)
    once_ns = exposed_once_ns(signals, np.logical_or.reduce(list(groups.values())))

    def cells(name: str, chosen: Mask) -> tuple[Cell, ...]:
        sizes = collectives.size_bytes[chosen]
        size_bytes = int(sizes.sum()) if (sizes >= 0).all() else None
        return (
            *((name,) if by else ()),
            int(chosen.sum()),
            *((size_bytes,) if has_bytes else ()),
            int(collectives.duration_ns[chosen].sum()),
            int(once_ns[chosen].sum()),
        )

    columns = (
        *((by,) if by else ()),
        Column("count", "Count", "count"),
        *((Column("size_bytes", "Bytes", "bytes"),) if has_bytes else ()),
        Column("duration_ns", "Duration", "ns"),
        Column("exposed_ns", "Exposed", "ns"),
    )
    return Table(title, columns, tuple(cells(*group) for group in groups.items()))


def collectives_by_operation(signals: Signals) -> Table:
    """The collectives of the used window by operation, the most exposed first."""
    collectives = collectives_of(signals)
    once_ns = exposed_once_ns(signals, np.ones(len(collectives), dtype=bool))
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
                int(once_ns[is_operation].sum()),
            )
        )
    ranked = sorted(rows, key=lambda row: -row[4])
    return Table(
        f"Collectives {in_analyzed(signals)}",
        (
            Column("operation", "Operation"),
            Column("count", "Count", "count"),
            Column("size_bytes", "Bytes", "bytes"),
            Column("duration_ns", "Duration", "ns"),
            Column("exposed_ns", "Exposed", "ns"),
        ),
        tuple(ranked),
    )


def _on_slow_messages(signals: Signals) -> str:
    """What the rate of the large messages tells of transfer and waiting, as a sentence or none."""
    slow = slow_messages(signals)
    if slow is None:
        return ""
    rates = (
        f" Large messages reach {format_rate(slow.bytes_per_s, 'B/s')} at most, on a link of"
        f" {format_rate(slow.link_bytes_per_s, 'B/s')}"
    )
    if slow.spread is None or not slow.points_to_link:
        return f"{rates}: the link is slow, or other ranks are late for all of them."
    return (
        f"{rates}, and those of one size take the same time to within {format_share(slow.spread)}:"
        " that points to a slow link rather than to late ranks."
    )


_ALMOST_ALL = 0.9995
"""From here on, `format_share` prints 100.0 %."""


def on_waiting(signals: Signals, split: float | None, wire_ns: int) -> str:
    """How the exposed time splits into transfer and waiting: half a sentence, or more.

    `split` is the share of the time in collectives that is transfer; None if unknown. `wire_ns` is
    the time that the bytes need on the link, as far as it is exposed.
    """
    how = "how much of it is waiting for other ranks is unknown"
    unknown = (
        f"most collectives could not be matched across the ranks, so {how}"
        if has_all_ranks(signals)
        else f"without profiles of all ranks, {how}"
    )
    slow = f".{_on_slow_messages(signals)}"
    if split is None and wire_ns:
        least = format_duration(wire_ns / signals.steps.count)
        return f"at least {least} is transfer, judging by the bytes sent; {unknown}{slow}"
    if split is None:
        return f"{unknown}{slow}"
    peers = "ranks" if len(signals.run.traces) > 1 else "devices"
    waiting = format_share(1 - split) if split < _ALMOST_ALL else "none"
    return f"{waiting} of the time in collectives is waiting for other {peers}."
