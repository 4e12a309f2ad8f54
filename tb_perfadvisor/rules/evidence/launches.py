"""How far the host runs ahead of the device, and for which launches the device waits."""

from __future__ import annotations

import numpy as np

from tb_perfadvisor.rules.amounts import count_per_step
from tb_perfadvisor.rules.evidence.tables import costliest_groups
from tb_perfadvisor.rules.finding import Cell, Column, Table
from tb_perfadvisor.signals import Cause, Signals
from tb_perfadvisor.signals.launch.device_graphs import graph_replays, runs_graphs
from tb_perfadvisor.signals.launch.queue import LaunchQueue
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.intervals import Intervals, intersect, overlap_ns, total_ns, union
from tb_perfadvisor.trace.tables import Int32
from tb_perfadvisor.units import format_duration

_SHORT_KERNEL_NS = 50_000
"""A launch takes 5 to 20 microseconds. The length of longer kernels does not explain the idle."""
_FEW_KERNELS = 50
"""A single layer of a transformer launches about this many, with its gradients. Of fewer, it is
not the number that costs time, but what the host does for each."""


def launch_queue_table(queue: LaunchQueue) -> Table:
    """How far the host was ahead of the device."""
    return Table(
        "How far the host runs ahead of the device",
        (
            Column("empty_share", "Launches that find an empty queue", "share"),
            Column("median_depth", "Work queued at a launch (median)", "count"),
            Column("median_lead_ns", "From launch to start (median)", "ns"),
        ),
        ((queue.empty_share, queue.median_depth, queue.median_lead_ns),),
    )


def idle_by_host_state(signals: Signals, intervals: Intervals, recording_ns: int) -> Table:
    """What the host did during idle time that it causes.

    Args:
        signals: The worker's facts.
        intervals: The idle time, a part of `Signals.host_idle`.
        recording_ns: The estimated cost of recording in it.
    """
    trace, attribution = signals.trace, signals.attribution
    replays = graph_replays(signals).row
    replaying = union(trace.events.start_ns[replays], trace.events.end_ns[replays])

    def idle_ns(*causes: Cause) -> int:
        return total_ns(intersect(attribution.of(*causes), intervals))

    rows: list[tuple[Cell, ...]] = [
        ("in launch calls", idle_ns(Cause.LAUNCHING)),
        ("in framework code", idle_ns(Cause.FRAMEWORK)),
        ("in Python", idle_ns(Cause.PYTHON) if len(trace.rows(EventKind.PYTHON)) else None),
        ("not recorded", idle_ns(Cause.UNEXPLAINED, Cause.SYNCHRONIZATION)),
        ("of the above: recording (estimated)", recording_ns),
    ]
    if len(replays):
        in_replays = total_ns(intersect(replaying, intervals))
        rows.append(("of the above: launches of graphs", in_replays))
    return Table(
        "What the host did while the device idled",
        (Column("cause", "The host was"), Column("idle_ns", "Device idle in all", "ns")),
        tuple(rows),
    )


def idle_by_launching_operator(signals: Signals, intervals: Intervals) -> Table:
    """Idle time in the intervals, by the operator whose launch ended the gap."""
    trace, idle = signals.trace, signals.attribution.idle
    known = idle.launch_row >= 0
    operator = signals.launching_operator[idle.launch_row[known]]
    idle_ns = overlap_ns(intervals, idle.start_ns[known], idle.end_ns[known])
    name = np.where(operator >= 0, trace.events.name[operator], -1)
    return Table(
        "Operators whose launches the device waits for",
        (
            Column("name", "Operator"),
            Column("count", "Gaps", "count"),
            Column("idle_ns", "Device idle before", "ns"),
        ),
        tuple(
            (trace.text(int(name[gaps[0]])) or "(no operator)", len(gaps), total)
            for gaps, total in costliest_groups(name[:, None], idle_ns)
            if total > 0
        ),
    )


def launched_kernels(signals: Signals, rows: Int32, idle_ns: int) -> str:
    """How many kernels are launched, and how short they are where that is the point.

    Args:
        signals: The worker's facts.
        rows: The kernels.
        idle_ns: How long the device waits for them.
    """
    where = " outside of graphs" if runs_graphs(signals) else ""
    count = count_per_step(len(rows), "kernel", signals).removesuffix(" in all")
    kernels = f"{count}{where}"
    if 0 < len(rows) < _FEW_KERNELS * max(len(signals.steps), 1):
        return f"the device waits {format_duration(idle_ns / len(rows))} for each of {kernels}"
    median_ns = float(np.median(signals.trace.events.duration_ns[rows])) if len(rows) else 0.0
    if 0 < median_ns <= _SHORT_KERNEL_NS:
        return f"half of the {kernels} take less than {format_duration(median_ns)}"
    return f"it launches {kernels}"
