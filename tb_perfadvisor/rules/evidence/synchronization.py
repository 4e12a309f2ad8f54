"""Where a program waits for the device: tables, events and the most common causes."""

from __future__ import annotations

import numpy as np

from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.evidence.synchronization_causes import cause_of
from tb_perfadvisor.rules.finding import Cell, Column, Events, Saving, Table, costliest
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.host.awaited_values import awaited_values
from tb_perfadvisor.signals.host.wait_call_sites import WaitCallSite, is_whole_wait
from tb_perfadvisor.signals.host.wait_prices import Mask, wait_prices
from tb_perfadvisor.trace.tables import Int64

_REST = "less: idle time that has other causes, too"


def costliest_waits(signals: Signals, chosen: Mask, saving: Saving) -> Events:
    """The waits that cost most; the longest ones if none costs any by itself.

    Args:
        signals: The worker's facts.
        chosen: Which of its `synchronizations`, shape (n,).
        saving: What `saving_without_waits` says of them.
    """
    waits = signals.synchronizations
    is_priced = saving.priced is not None
    cost = wait_prices(signals, chosen).expected_ns if is_priced else waits.induced_ns
    counted = chosen & is_whole_wait(signals)
    shown = counted & (cost > 0)
    if not shown.any():
        shown, cost = counted, waits.duration_ns
    return costliest("Costliest waits", signals.worker, waits.row[shown], cost[shown])


def waits_by_call_site(
    title: str,
    signals: Signals,
    sites: tuple[WaitCallSite, ...],
    chosen: Mask,
    saving: Saving,
) -> Table:
    """Waits by call site, without the columns that are empty in this profile.

    If the steps were replayed, the last columns are the prices of the waits. Otherwise the last one
    is the idle time that they induce, and a row says what the finding expects beside it.

    Args:
        title: Of the table.
        signals: The worker's facts.
        sites: The call sites.
        chosen: Which of the `synchronizations` belong to the sites, shape (n,).
        saving: What `saving_without_waits` says of them.
    """
    values, prices = awaited_values(signals), wait_prices(signals, chosen)
    is_priced = saving.priced is not None

    def total_of(site: WaitCallSite, column: Int64) -> int:
        return int(column[np.searchsorted(values.row, site.rows)].sum())

    def cost_ns(site: WaitCallSite) -> int:
        return total_of(site, prices.expected_ns) if is_priced else site.induced_ns

    sites = tuple(sorted(sites, key=lambda site: -cost_ns(site)))
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
        (
            Column("host_code_ns", "Host code before the next launch, mean", "ns"),
            [values.mean_host_code_ns(site.rows) for site in sites],
        ),
    ]
    if is_priced:
        for key, label, price_ns in (
            ("idle_ns", "Idle until the next wait", prices.idle_ns),
            ("if_needed_ns", "Saved if values are needed", prices.if_needed_ns),
            ("if_free_ns", "Saved if not", prices.if_free_ns),
            ("expected_ns", "Expected", prices.expected_ns),
        ):
            sums.append((Column(key, label, "ns"), [total_of(site, price_ns) for site in sites]))
    else:
        sums.append((Column("induced_ns", "Idle induced", "ns"), [cost_ns(s) for s in sites]))
    rest_ns = saving.expected_ns - sum(map(cost_ns, sites))
    if rest_ns:
        rest: dict[str, Cell] = {
            "cause": _REST,
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
    rows = zip(*(cells for _, cells in columns), strict=True)
    return Table(title, tuple(column for column, _ in columns), tuple(rows))


def main_causes(sites: tuple[WaitCallSite, ...]) -> str:
    """The one or two known causes that cost most idle time, as a clause; empty if unknown."""
    cost: dict[str, int] = {}
    for site in sites:
        label = _label(site)
        if label is not None:
            cost[label] = cost.get(label, 0) + site.induced_ns
    if len(cost) == 1 and all(map(_label, sites)):
        return f", by {next(iter(cost))}"
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
