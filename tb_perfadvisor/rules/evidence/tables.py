"""Tables that many rules show: events by name, times of the steps, and what recorders sum up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct

from tb_perfadvisor.machine.facts import Made
from tb_perfadvisor.rules.finding import (
    Cell,
    Column,
    Events,
    Finding,
    Series,
    Table,
    Unit,
    costliest,
)
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.serving.server_steps import Mask, ServerSteps, phases_within
from tb_perfadvisor.trace import Trace
from tb_perfadvisor.trace.integer_groups import group_rows, rows_by_group
from tb_perfadvisor.trace.intervals import Intervals, clip, union
from tb_perfadvisor.trace.names import short_name
from tb_perfadvisor.trace.tables import Int32, Int64


def event_count(trace: Trace, count: int) -> int | None:
    """How often something happened; None where each event is a recorder's sum of many."""
    return count if trace.totals is None else None


def events_by_name(
    title: str, noun: str, trace: Trace, rows: Int32, totals: Sequence[tuple[Column, Int64]]
) -> Table:
    """Events summed by name, ordered by the last column, largest first.

    `noun` is what an event is: the label of the first column. `totals` are columns and what each
    event adds to them, shape (n,) each.
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


def own_times(title: str, signals: Signals, rows: Int32, own_ns: Int64) -> tuple[Table, Events]:
    """Operators by name, and the longest, by their own times."""
    own = Column("own_ns", "Own time", "ns"), own_ns
    return (
        events_by_name(title, "Operator", signals.trace, rows, (own,)),
        costliest("Longest of these operators", signals.worker, rows, own_ns),
    )


def costliest_groups(keys: Int64, cost_ns: Int64) -> list[tuple[Int64, int]]:
    """Rows with equal keys, as indices with their total cost; the costliest group first.

    `keys` tell the groups apart, shape (n, columns).
    """
    first, group = group_rows(*keys.T)
    members = rows_by_group(group, len(first))
    total = np.bincount(group, weights=cost_ns, minlength=len(first))
    order = np.argsort(-total, kind="stable").tolist()
    return [(members[index], int(total[index])) for index in order]


def series_by_step(title: str, signals: Signals, values: Int64, *, unit: Unit = "ns") -> Series:
    """One value for each used step, by the step's number.

    `values` have shape (steps,).
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

    The last two arguments are the titles of both.
    """
    now_ns = signals.trace.events.duration_ns[rows]
    total = ((Column("total_ns", "Time", "ns"), now_ns),)
    return (
        events_by_name(table, "Operation", signals.trace, rows, total),
        costliest(longest, signals.worker, rows, now_ns),
    )


def equal_part(signals: Signals, share: float) -> Intervals:
    """A part of each step, since nothing tells in which steps the work is done."""
    window = signals.attribution
    edges = np.append(signals.steps.start_ns, window.window_end_ns).astype(np.int64)
    if len(edges) < 2:
        edges = np.array([window.window_start_ns, window.window_end_ns], dtype=np.int64)
    ends = edges[:-1] + np.ceil(np.diff(edges) * share).astype(np.int64)
    return clip(union(edges[:-1], ends), window.window_start_ns, window.window_end_ns)


def made_tables(parts: Iterable[Made]) -> tuple[Table, ...]:
    """A table of the lines that make some parts; none if no recorder saw them."""
    rows = tuple(dict.fromkeys((made.name, f"{made.path}:{made.line} {made.function}".strip())
                               for made in parts))  # fmt: skip
    columns = (Column("name", "Part"), Column("place", "Where"))
    return (Table("Where the program makes it", columns, rows),) if rows else ()


def step_loops(signals: Signals) -> tuple[Table, ...]:
    """A table of the loops that make the steps; none if no recorder saw them."""
    return made_tables(signals.trace.facts.program.all_made("step loop"))


def in_loop(signals: Signals) -> str:
    """` in the loop at train.py:42`, whose rounds are the steps; empty if no recorder saw it."""
    loops = signals.trace.facts.program.all_made("step loop")
    return f" in the loop at {loops[0].path}:{loops[0].line}" if loops else ""


class OperatorKind(Struct, frozen=True):
    """All operators of a type on the device, over the whole recording and all devices."""

    type: str
    count: int
    self_ns: int
    share: float
    """Of the time of all operators on the device."""


def operator_kinds(signals: Signals) -> tuple[OperatorKind, ...]:
    """The kinds of operators on the device, the costliest first."""
    totals = signals.trace.totals
    sums: dict[str, list[int]] = {}
    for operator in totals.operators if totals is not None else ():
        if operator.is_on_device:
            kind = sums.setdefault(operator.type, [0, 0])
            kind[0] += operator.count
            kind[1] += operator.self_ns
    whole_ns = sum(self_ns for _, self_ns in sums.values())
    kinds = [
        OperatorKind(type_, count, self_ns, self_ns / whole_ns if whole_ns else 0.0)
        for type_, (count, self_ns) in sums.items()
    ]
    return tuple(sorted(kinds, key=lambda kind: -kind.self_ns))


def operator_sums_table(kinds: tuple[OperatorKind, ...]) -> Table:
    """The kinds with their mean durations."""
    return Table(
        "Operators on the device in the whole recording, by their own time",
        (
            Column("type", "Type"),
            Column("count", "Count", "count"),
            Column("own_ns", "Own time", "ns"),
            Column("mean_ns", "Mean", "ns"),
            Column("share", "Of the operators' time", "share"),
        ),
        tuple(
            (kind.type, kind.count, kind.self_ns, kind.self_ns // max(kind.count, 1), kind.share)
            for kind in kinds
        ),
    )


def server_phases(signals: Signals, idle: Intervals) -> tuple[Table, ...]:
    """What an inference server does during some idle time; nothing for other programs."""
    phases = phases_within(signals, idle)
    if not phases:
        return ()
    return (
        Table(
            "What the server did in the gaps",
            (
                Column("phase", "The server was"),
                Column("idle_ns", "Device idle in all", "ns"),
                Column("code", "Mostly in"),
            ),
            tuple(
                (part.phase.value.lower(), part.idle_ns, part.code[0][0] if part.code else "")
                for part in phases
            ),
        ),
    )


def batches_table(steps: ServerSteps, chosen: Mask) -> Table:
    """Some steps by the number of requests and by whether they replay graphs."""
    places = np.flatnonzero(chosen)
    is_replayed = steps.graphs[places] > 0
    first, group = group_rows(steps.decode_requests[places], is_replayed.astype(np.int64))
    order = np.argsort(steps.decode_requests[places[first]], kind="stable")
    rows: list[tuple[Cell, ...]] = []
    for number in order.tolist():
        members = places[group == number]
        requests, periods = int(steps.decode_requests[members[0]]), steps.period_ns[members]
        rows.append(
            (
                None if requests < 0 else requests,
                len(members),
                "yes" if steps.graphs[members[0]] else "no",
                round(float(steps.launches[members].mean())),
                round(float(periods.mean())) if (periods >= 0).all() else None,
                round(float(steps.device_ns[members].mean())),
            )
        )
    return Table(
        "Decode steps by batch",
        (
            Column("requests", "Requests", "count"),
            Column("steps", "Steps", "count"),
            Column("replays", "Replays a graph"),
            Column("launches", "Other launches", "count"),
            Column("period_ns", "Step", "ns"),
            Column("device_ns", "Device", "ns"),
        ),
        tuple(rows),
    )


MOST_CHARACTERS = 64
"""A title should fit on one line."""
_PLACES = ("source", "line")
_PARTS = ("product", "array")


def instance_of(finding: Finding) -> str:
    """The instance that a finding states, or that its evidence lists first; else empty."""
    if finding.instance:
        return finding.instance
    for table in finding.evidence:
        if isinstance(table, Table) and table.names_instance and table.rows:
            return _of_row(table, table.rows[0])
    return ""


def fetch_name(name: str) -> str:
    """The DataLoader whose iterator PyTorch names, or else the name itself."""
    return "DataLoader" if name.startswith("enumerate(DataLoader)") else name


def _of_row(table: Table, row: tuple[Cell, ...]) -> str:
    """The subject of a row, its size, and the line of code behind it."""
    cells = {column.key: cell for column, cell in zip(table.columns, row, strict=True)}
    subject, *_ = row
    if not isinstance(subject, str) or not subject or subject.startswith("("):
        return ""
    named = [short_name(subject)]
    named += [f"{cells[key]}" for key in _PARTS if cells.get(key)]
    places = [f" at {short_name(str(cells[key]))}" for key in _PLACES if cells.get(key)]
    text = " of ".join(named) + "".join(places[:1])
    if len(text) > MOST_CHARACTERS:
        text = " of ".join(named)
    return text if len(text) <= MOST_CHARACTERS else named[0]
