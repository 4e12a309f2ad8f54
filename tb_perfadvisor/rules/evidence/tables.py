"""Events by name, and the times of the steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tb_perfadvisor.rules.finding import Column, Events, Series, Table, Unit, costliest
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.trace import Trace
from tb_perfadvisor.trace.integer_groups import group_rows, rows_by_group
from tb_perfadvisor.trace.tables import Int32, Int64


def event_count(trace: Trace, count: int) -> int | None:
    """How often something happened; None where each event is a recorder's sum of many."""
    return count if trace.totals is None else None


def events_by_name(
    title: str, noun: str, trace: Trace, rows: Int32, totals: Sequence[tuple[Column, Int64]]
) -> Table:
    """Events summed by name, ordered by the last column, largest first.

    Args:
        title: Of the table.
        noun: What an event is: the label of the first column.
        trace: The events' trace.
        rows: Events, shape (n,).
        totals: Columns and what each event adds to them, shape (n,) each.
    """
    names, first, inverse, count = np.unique(
        trace.events.name[rows], return_index=True, return_inverse=True, return_counts=True
    )
    sums = [
        np.bincount(inverse, weights=values, minlength=len(names)).astype(np.int64)
        for _, values in totals
    ]
    return Table(
        title,
        (
            Column("name", noun),
            Column("count", "Count", "count"),
            *(column for column, _ in totals),
        ),
        tuple(
            (
                trace.strings[names[i]],
                event_count(trace, int(count[i])),
                *(int(total[i]) for total in sums),
            )
            # Equal totals stay in order of their first event.
            for i in np.lexsort((first, -sums[-1])).tolist()
        ),
        names_instance=True,
    )


def costliest_groups(keys: Int64, cost_ns: Int64) -> list[tuple[Int64, int]]:
    """Rows with equal keys, as indices with their total cost; the costliest group first.

    Args:
        keys: What tells the groups apart, shape (n, columns).
        cost_ns: What each row costs, shape (n,).
    """
    first, group = group_rows(*keys.T)
    members = rows_by_group(group, len(first))
    total = np.bincount(group, weights=cost_ns, minlength=len(first))
    order = np.argsort(-total, kind="stable").tolist()
    return [(members[index], int(total[index])) for index in order]


def series_by_step(title: str, signals: Signals, values: Int64, *, unit: Unit = "ns") -> Series:
    """One value for each used step, by the step's number.

    Args:
        title: Of the series.
        signals: The worker's facts.
        values: Shape (steps,).
        unit: Of the values.
    """
    numbers = signals.steps.number.astype(float).tolist()
    points = zip(numbers, values.astype(float).tolist(), strict=True)
    return Series(title, "count", unit, tuple(points))


def step_time_series(signals: Signals) -> Series:
    """The duration of each used step by its number."""
    return series_by_step("Step times", signals, signals.steps.duration_ns)


def executions_by_operation(
    signals: Signals, rows: Int32, table: str, longest: str
) -> tuple[Table, Events]:
    """A table of executions of XLA operations by name, and the longest of them.

    Args:
        signals: The worker's facts.
        rows: The executions, shape (n,).
        table: Title of the table.
        longest: Title of the longest.
    """
    now_ns = signals.trace.events.duration_ns[rows]
    total = ((Column("total_ns", "Time", "ns"), now_ns),)
    return (
        events_by_name(table, "Operation", signals.trace, rows, total),
        costliest(longest, signals.worker, rows, now_ns),
    )
