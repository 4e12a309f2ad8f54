"""The steps of an inference server, by their batches."""

from __future__ import annotations

import numpy as np

from tb_perfadvisor.rules.finding import Cell, Column, Table
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.serving.server_steps import Mask, ServerSteps, phases_within
from tb_perfadvisor.trace.integer_groups import group_rows
from tb_perfadvisor.trace.intervals import Intervals


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
