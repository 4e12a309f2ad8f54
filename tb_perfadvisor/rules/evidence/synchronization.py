"""Where a program waits for the device: tables, events and the most common causes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.rules.evidence.synchronization_causes import cause_of
from tb_perfadvisor.rules.finding import Cell, Column, Events, Table, costliest
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.host.wait_call_sites import WaitCallSite


def costliest_waits(signals: Signals, chosen: NDArray[np.bool_]) -> Events:
    """The waits that cause most idle time; the longest ones if none causes any by itself."""
    waits = signals.synchronizations
    inducing = chosen & (waits.induced_ns > 0)
    cost = waits.induced_ns if inducing.any() else waits.duration_ns
    shown = inducing if inducing.any() else chosen
    return costliest("Costliest waits", signals.worker, waits.row[shown], cost[shown])


def waits_by_call_site(title: str, sites: tuple[WaitCallSite, ...]) -> Table:
    """Waits by call site, without the columns that are empty in this profile."""
    descriptions: list[tuple[Column, list[Cell]]] = [
        (Column("cause", "What waits"), [_label(site) for site in sites]),
        (Column("node", "Backward of"), [site.forward or site.node or None for site in sites]),
        (Column("operator", "Operator"), [_operator(site) for site in sites]),
        (Column("call", "Call"), [" + ".join(site.calls) for site in sites]),
        (Column("module", "Module"), [site.module for site in sites]),
        (Column("source", "Source line"), [site.line for site in sites]),
    ]
    sums: list[tuple[Column, list[Cell]]] = [
        (Column("count", "Count", "count"), [site.count for site in sites]),
        (Column("duration_ns", "In the call", "ns"), [site.duration_ns for site in sites]),
        (Column("induced_ns", "Idle induced", "ns"), [site.induced_ns for site in sites]),
    ]
    columns = [
        (column, cells) for column, cells in descriptions if any(cell is not None for cell in cells)
    ] + sums
    return Table(
        title,
        tuple(column for column, _ in columns),
        tuple(zip(*(cells for _, cells in columns), strict=True)),
    )


def main_causes(sites: tuple[WaitCallSite, ...]) -> str:
    """The one or two known causes that cost most idle time, as a clause; empty if unknown."""
    cost: dict[str, int] = {}
    for site in sites:
        label = _label(site)
        if label is not None:
            cost[label] = cost.get(label, 0) + site.induced_ns
    labels = sorted(cost, key=lambda label: -cost[label])[:2]
    return f", mostly {' and '.join(labels)}" if labels else ""


def _label(site: WaitCallSite) -> str | None:
    cause = cause_of(site)
    return cause.label if cause is not None else None


def _operator(site: WaitCallSite) -> str | None:
    """The operator that the program called, and the one inside it that waits."""
    if not site.operators:
        return None
    inner, outer = site.operators[0], site.operators[-1]
    return outer if inner == outer else f"{outer} > {inner}"
