"""A table of device work by the call site that launches it."""

from __future__ import annotations

import numpy as np

from tb_perfadvisor.rules.finding import Cell, Column, Events, Table, costliest
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.device.device_work import (
    operator_around,
    operators_of,
    time_within,
)
from tb_perfadvisor.signals.host.source_lines import source_line
from tb_perfadvisor.trace.integer_groups import group_rows
from tb_perfadvisor.trace.intervals import Intervals
from tb_perfadvisor.trace.tables import Int32, Int64

MOST_SITES = 30


def costly_work(
    noun: str, signals: Signals, rows: Int32, claims: Intervals, operators: Int32 | None = None
) -> tuple[Table, Events]:
    """Device work by call site, and its longest events, both by their time in some intervals.

    Args:
        noun: What the events are, in the plural, for the titles.
        signals: The worker's facts.
        rows: Device events, shape (n,).
        claims: The intervals that a saving is taken from.
        operators: The operator to which each event counts; see `work_by_call_site`.
    """
    cost_ns = time_within(signals, rows, claims)
    title = f"{noun[0].upper()}{noun[1:]} by call site"
    return (
        work_by_call_site(title, signals, rows, cost_ns, operators),
        costliest(f"Longest {noun}", signals.worker, rows, cost_ns),
    )


def work_by_call_site(
    title: str, signals: Signals, rows: Int32, cost_ns: Int64, operators: Int32 | None = None
) -> Table:
    """Device work by operator, what calls it, its input shapes and source line; costliest first.

    Args:
        title: Of the table.
        signals: The worker's facts.
        rows: Device events, shape (n,).
        cost_ns: What each costs, shape (n,).
        operators: The operator to which each event counts, shape (n,); by default the innermost
            one that launched it. Events without an operator count to their kernel.
    """
    trace = signals.trace
    operators = operators_of(signals, rows) if operators is None else operators
    around = operator_around(signals, operators)
    name = np.where(operators >= 0, trace.events.name[operators], trace.events.name[rows])
    caller = np.where(around >= 0, trace.events.name[around], -1)
    shapes = trace.by_event(trace.operators.row, trace.operators.shapes, -1)
    shape = np.where(operators >= 0, shapes[operators], -1)
    sites, inverse = group_rows(name, caller, shape)
    total = np.bincount(inverse, weights=cost_ns, minlength=len(sites)).astype(np.int64)
    count = np.bincount(inverse, minlength=len(sites))
    table: list[tuple[Cell, ...]] = []
    for site in np.argsort(-total, kind="stable")[:MOST_SITES].tolist():
        members = np.flatnonzero(inverse == site)
        example = int(rows[members[cost_ns[members].argmax()]])
        first = sites[site]
        table.append(
            (
                trace.text(int(name[first])),
                trace.text(int(caller[first])),
                trace.text(int(shape[first])),
                source_line(signals, example) or "",
                int(count[site]),
                int(total[site]),
            )
        )
    return Table(
        title,
        (
            Column("operator", "Operator or kernel"),
            Column("caller", "Called by"),
            Column("shapes", "Input shapes"),
            Column("source", "Source line"),
            Column("count", "Count", "count"),
            Column("total_ns", "Time", "ns"),
        ),
        tuple(table),
        names_instance=True,
    )
