"""Where a program waits for the device: tables, events and the most common causes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.evidence.synchronization_causes import cause_of
from tb_perfadvisor.rules.finding import Cell, Column, Events, Saving, Table, costliest
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.host.awaited_values import awaited_values
from tb_perfadvisor.signals.host.wait_call_sites import WaitCallSite

_LATER = "idle time later in the step, since the host cannot run ahead"
_REMAINS = "less: idle time that has other causes, too"


def costliest_waits(signals: Signals, chosen: NDArray[np.bool_]) -> Events:
    """The waits that cause most idle time; the longest ones if none causes any by itself."""
    waits = signals.synchronizations
    inducing = chosen & (waits.induced_ns > 0)
    cost = waits.induced_ns if inducing.any() else waits.duration_ns
    shown = inducing if inducing.any() else chosen
    return costliest("Costliest waits", signals.worker, waits.row[shown], cost[shown])


def waits_by_call_site(
    title: str, signals: Signals, sites: tuple[WaitCallSite, ...], saved_ns: int
) -> Table:
    """Waits by call site, without the columns that are empty in this profile.

    Args:
        title: Of the table.
        signals: The worker's facts.
        sites: The call sites.
        saved_ns: What the finding expects to save. A row says how much of it, or how much less
            than that, the waits do not induce by themselves.
    """
    descriptions: list[tuple[Column, list[Cell]]] = [
        (Column("cause", "What waits"), [_label(site) for site in sites]),
        (Column("node", "Backward of"), [site.forward or site.node or None for site in sites]),
        (Column("operator", "Operator"), [_operator(site) for site in sites]),
        (Column("call", "Call"), [" + ".join(site.calls) for site in sites]),
        (Column("module", "Module"), [site.module for site in sites]),
        (Column("source", "Source line"), [site.line for site in sites]),
    ]
    values = awaited_values(signals)
    sums: list[tuple[Column, list[Cell]]] = [
        (Column("count", "Count", "count"), [site.count for site in sites]),
        (Column("duration_ns", "In the call", "ns"), [site.duration_ns for site in sites]),
        (
            Column("host_code_ns", "Host code before the next launch, mean", "ns"),
            [values.mean_host_code_ns(site.rows) for site in sites],
        ),
        (Column("induced_ns", "Idle induced", "ns"), [site.induced_ns for site in sites]),
    ]
    rest_ns = saved_ns - sum(site.induced_ns for site in sites)
    if rest_ns:
        rest: dict[str, Cell] = {
            "cause": _LATER if rest_ns > 0 else _REMAINS,
            "count": 0,
            "duration_ns": 0,
            "induced_ns": rest_ns,
        }
        for column, cells in (*descriptions, *sums):
            cells.append(rest.get(column.key))
    columns = [
        (column, cells)
        for column, cells in (*descriptions, *sums)
        if any(cell is not None for cell in cells)
    ]
    rows = list(zip(*(cells for _, cells in columns), strict=True))
    if rest_ns > 0:
        # The largest amount comes first, because long tables are cut.
        at = sum(site.induced_ns >= rest_ns for site in sites)
        rows.insert(at, rows.pop())
    return Table(title, tuple(column for column, _ in columns), tuple(rows))


def main_causes(sites: tuple[WaitCallSite, ...]) -> str:
    """The one or two known causes that cost most idle time, as a clause; empty if unknown."""
    cost: dict[str, int] = {}
    for site in sites:
        label = _label(site)
        if label is not None:
            cost[label] = cost.get(label, 0) + site.induced_ns
    labels = sorted(cost, key=lambda label: -cost[label])[:2]
    return f", mostly {' and '.join(labels)}" if labels else ""


def if_not_needed(saving: Saving, signals: Signals) -> str:
    """What the waits cost if the program needs none of the values; empty if that is expected."""
    if saving.high_ns == saving.expected_ns:
        return ""
    most = per_step(saving.high_ns, signals)
    return f"; up to {most} if the host code after them does not need what they copy"


def _label(site: WaitCallSite) -> str | None:
    cause = cause_of(site)
    return cause.label if cause is not None else None


def _operator(site: WaitCallSite) -> str | None:
    """The operator that the program called, and the one inside it that waits."""
    if not site.operators:
        return None
    inner, outer = site.operators[0], site.operators[-1]
    return outer if inner == outer else f"{outer} > {inner}"
