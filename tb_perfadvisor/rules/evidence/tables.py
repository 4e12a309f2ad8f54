"""Tables that many rules show: events by name, times of the steps, and what recorders sum up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from tb_perfadvisor.advice import Remedy
from tb_perfadvisor.machine.facts import Made
from tb_perfadvisor.rules.finding import (
    Cell,
    Column,
    Events,
    Evidence,
    Finding,
    Series,
    Table,
    Unit,
    costliest,
    severity_by_share,
)
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.core.operators import Phase, sample_maxima
from tb_perfadvisor.signals.device.memory_use import Holder, MemoryUse
from tb_perfadvisor.signals.serving.server_steps import Mask, ServerSteps
from tb_perfadvisor.signals.snapshots.course import Course
from tb_perfadvisor.signals.snapshots.sites import EARLIER, LineMemory, by_line
from tb_perfadvisor.signals.steps.timed_run import RunCost
from tb_perfadvisor.trace import Trace
from tb_perfadvisor.trace.integer_groups import group_rows, rows_by_group
from tb_perfadvisor.trace.intervals import Intervals, clip, union
from tb_perfadvisor.trace.names import short_name
from tb_perfadvisor.trace.tables import Float64, Int32, Int64
from tb_perfadvisor.units import format_bytes, format_share


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
    made = next(iter(signals.trace.facts.program.all_made("step loop")), None)
    is_loop = made is not None and made.facts.get("is_loop", True)
    return f" in the loop at {made.path}:{made.line}" if made is not None and is_loop else ""


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


_POINTS = 400
PHASES = {
    Phase.BEFORE: "before the recording (parameters, optimizer state and other earlier memory)",
    Phase.INPUT: "input",
    Phase.FORWARD: "forward",
    Phase.BACKWARD: "backward",
    Phase.OPTIMIZER: "optimizer",
    Phase.OTHER: "outside operators",
}


def allocated_memory_series(use: MemoryUse) -> Series:
    """Allocated memory over time."""
    picks = use.sample(_POINTS)
    points = zip(use.at_ns[picks].tolist(), use.allocated_bytes[picks].tolist(), strict=True)
    title = "Allocated memory" if use.has_totals else "Allocated memory, since the profile's start"
    return Series(title, "ns", "bytes", tuple((float(x), float(y)) for x, y in points))


def memory_by_operator(title: str, holders: Iterable[Holder]) -> Table:
    """Memory by the operator that allocated it."""
    return Table(
        title,
        (
            Column("operator", "Operator"),
            Column("module", "Module"),
            Column("phase", "Allocated in"),
            Column("count", "Allocations", "count"),
            Column("bytes", "Held", "bytes"),
        ),
        tuple(
            (
                holder.operator or None,
                holder.module or None,
                PHASES[holder.phase],
                holder.count,
                holder.bytes,
            )
            for holder in holders
        ),
    )


def memory_over_time(course: Course) -> tuple[Series, ...]:
    """Allocated and reserved memory; none without times."""
    if not course.has_times:
        return ()
    picks = sample_maxima(course.allocated_bytes, _POINTS)
    return (
        _series("Allocated memory", course.at_ns[picks], course.allocated_bytes[picks]),
        _series("Reserved memory", course.at_ns[picks], course.reserved_bytes[picks]),
    )


def _series(title: str, at_ns: Int64, size_bytes: Int64) -> Series:
    points = zip(at_ns.tolist(), size_bytes.tolist(), strict=True)
    return Series(title, "ns", "bytes", tuple((float(x), float(y)) for x, y in points))


def holders_in(course: Course, state: int) -> tuple[LineMemory, ...]:
    """What is allocated in a state, by line."""
    return by_line(course.allocations.alive_in(state), course.snapshot.stacks)


def memory_by_line(title: str, holders: Sequence[LineMemory]) -> Table:
    """Memory by the line of the program that allocated it."""
    return Table(
        title,
        (
            Column("source", "Allocated at"),
            Column("tensor", "By"),
            Column("count", "Allocations", "count"),
            Column("bytes", "Held", "bytes"),
        ),
        tuple(
            (holder.line or EARLIER, holder.tensor, holder.count, holder.bytes)
            for holder in holders
        ),
    )


def largest_holder(holders: Sequence[LineMemory], total_bytes: int) -> str:
    """A clause on the line that holds most: `; model.py:54 forward holds 20.1 GiB (40 %) of it`."""
    known = [holder for holder in holders if holder.line is not None]
    if not known or total_bytes <= 0:
        return ""
    share = format_share(known[0].bytes / total_bytes)
    return f"; {known[0].line} holds {format_bytes(known[0].bytes)} ({share}) of it"


_NEARLY_ALL = 0.95


def run_finding(
    cost: RunCost,
    title: str,
    summary: str,
    evidence: Sequence[Evidence],
    remedies: Sequence[Remedy],
    ranks: Sequence[int] = (),
) -> Finding:
    """What costs time over the run, whatever the recorded steps show."""
    return Finding(
        title=title,
        summary=summary,
        severity=severity_by_share(cost.run_share),
        run_share=cost.run_share,
        evidence=tuple(evidence),
        remedies=tuple(remedies),
        ranks=tuple(ranks),
    )


def with_run(finding: Finding, cost: RunCost, evidence: Sequence[Evidence]) -> Finding:
    """A finding about recorded steps with what the same costs over the run."""
    share, where = format_share(cost.run_share), steps_of(cost)
    return replace(
        finding,
        summary=f"{finding.summary} Over the whole run it is {share} of the time, {where}.",
        evidence=(*finding.evidence, *evidence),
    )


def steps_of(cost: RunCost) -> str:
    """The affected steps in words: `in steps 101 to 200 (33.3 % of all)`."""
    parts, places = cost.parts, np.flatnonzero(cost.affected)
    if cost.affected.all():
        return "in all steps"
    if cost.steps_share >= _NEARLY_ALL:
        return "in nearly all steps"
    first, last = int(parts.first_step[places[0]]) + 1, int(parts.end_step[places[-1]])
    is_one = len(places) == places[-1] - places[0] + 1
    share = format_share(cost.steps_share)
    return f"{'in' if is_one else 'in parts of'} steps {first:,} to {last:,} ({share} of all)"


def run_series(title: str, cost: RunCost, values: Float64) -> Series:
    """A value per step over the run, where it is known."""
    known = ~np.isnan(values)
    steps = (cost.parts.first_step[known] + 1).tolist()
    points = zip(map(float, steps), values[known].tolist(), strict=True)
    return Series(title, "count", "ns", tuple(points))
