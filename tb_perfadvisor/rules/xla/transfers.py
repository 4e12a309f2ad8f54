"""TPU cores that wait for each other, or for data from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tables import events_by_name
from tb_perfadvisor.rules.finding import Column, Finding, Saving, Table, costliest
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.signals.core.causes import COMPUTE
from tb_perfadvisor.signals.device.device_work import time_within
from tb_perfadvisor.signals.device.memory_use import ROOM_SHARE
from tb_perfadvisor.signals.tpu.transfers import (
    CrossSlice,
    async_pairs,
    barriers,
    copied_bytes,
    cross_slice,
    host_bytes,
    is_to_host,
    offload_copies,
    offload_rows,
    offload_waits,
)
from tb_perfadvisor.signals.tpu.xla_operations import executions
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.trace.intervals import clip, intersect, minus, overlap_ns, total_ns
from tb_perfadvisor.trace.tables import Int32, Int64
from tb_perfadvisor.units import NS_PER_S


class BarrierWait(Rule):
    """A core waits at a barrier for the other cores."""

    id = "barrier-wait"
    title = "Balance the cores so that none waits at barriers"
    needs = (Need.DEVICE_EVENTS, Need.BARRIERS)

    minimum_share = Limit(
        0.03, "share", "Cores never arrive at exactly the same time; a few percent are normal."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        trace, window = signals.trace, signals.attribution
        events, rows = trace.events, barriers(trace)
        rows = rows[trace.tracks.device[events.track[rows]] == signals.device.index]
        waits = clip(
            events.spans(rows),
            window.window_start_ns,
            window.window_end_ns,
        )
        claims = minus(waits, window.of(*COMPUTE))
        waited_ns = total_ns(claims)
        if self.is_minor(waited_ns, signals):
            return
        cost_ns = overlap_ns(claims, events.start_ns[rows], events.end_ns[rows])
        rows, cost_ns = rows[cost_ns > 0], cost_ns[cost_ns > 0]
        yield Finding(
            instance=count_per_step(len(rows), "barrier", signals),
            summary=(
                f"The core waits {per_step(waited_ns, signals)} at barriers for other cores"
                f" ({count_per_step(len(rows), 'barrier', signals)})."
            ),
            saving=Saving(0, waited_ns, waited_ns, claims, "measured"),
            evidence=(costliest("Longest barriers", signals.worker, rows, cost_ns),),
            remedies=advise("dispatch-ahead", "equal-work"),
        )


class SlowCrossSlice(Rule):
    """Transfers between slices take longer than the compute that overlaps them."""

    id = "slow-cross-slice"
    title = "Send less data between slices, or send it earlier"
    refines = "exposed-communication"
    needs = (Need.DEVICE_EVENTS, Need.COLLECTIVES, Need.TILED_LAYOUTS)

    minimum_share = Limit(
        0.02, "share", "The last transfer of a step has little compute left to overlap with."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        events, transfers = signals.trace.events, cross_slice(signals)
        done = transfers.done
        claims = intersect(
            signals.attribution.intervals[Cause.COMMUNICATION],
            events.spans(done),
        )
        waited_ns = total_ns(claims)
        if self.is_minor(waited_ns, signals):
            return
        cost_ns = overlap_ns(claims, events.start_ns[done], events.end_ns[done])
        yield Finding(
            instance=count_per_step(len(done), "wait", signals),
            summary=(
                f"{per_step(waited_ns, signals)} is spent waiting for transfers between slices"
                f" ({count_per_step(len(done), 'wait', signals)})."
            ),
            saving=Saving(0, waited_ns // 2, waited_ns, claims, "heuristic"),
            evidence=(
                _table(signals, transfers, cost_ns),
                costliest("Longest waits", signals.worker, done, cost_ns),
            ),
            remedies=advise("fewer-cross-slice-bytes", "data-parallel-slices"),
        )


def _table(signals: Signals, transfers: CrossSlice, cost_ns: Int64) -> Table:
    """Bytes and bandwidth of each transfer, needed and available; the longest waits first."""
    trace = signals.trace
    rows: list[tuple[str, int, int, int, int, float | None, float | None]] = []
    for op in distinct(transfers.op).tolist():
        chosen = transfers.op == op
        sent, slack_ns = (
            int(transfers.size_bytes[chosen].sum()),
            int(transfers.between_ns[chosen].sum()),
        )
        whole_ns = slack_ns + int(trace.events.duration_ns[transfers.done[chosen]].sum())
        rows.append(
            (
                trace.text(int(trace.hlo.name[op])),
                int(chosen.sum()),
                sent,
                slack_ns,
                int(cost_ns[chosen].sum()),
                sent * NS_PER_S / slack_ns if slack_ns else None,
                sent * NS_PER_S / whole_ns if whole_ns else None,
            )
        )
    ranked = sorted(rows, key=lambda row: -row[4])
    return Table(
        "Transfers between slices",
        (
            Column("op", "Operation"),
            Column("count", "Count", "count"),
            Column("size_bytes", "Bytes", "bytes"),
            Column("slack_ns", "Slack", "ns"),
            Column("waited_ns", "Waited", "ns"),
            Column("needed", "Bandwidth needed", "bytes/s"),
            Column("had", "Bandwidth available", "bytes/s"),
        ),
        tuple(ranked),
    )


class SynchronousCollectives(Rule):
    """Asynchronous collectives have nothing to overlap with."""

    id = "synchronous-collectives"
    title = "Overlap asynchronous collectives with compute"
    refines = "exposed-communication"
    needs = (Need.DEVICE_EVENTS, Need.COLLECTIVES, Need.TILED_LAYOUTS)

    maximum_hidden_share = Limit(
        0.1, "share", "With less overlap, almost nothing of the transfer is hidden."
    )
    minimum_share = Limit(
        0.02, "share", "The last collective of a step has no compute left to overlap with."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        trace, pairs, attribution = signals.trace, async_pairs(signals), signals.attribution
        events = trace.events
        whole_ns = pairs.between_ns + events.duration_ns[pairs.done]
        is_bare = events.kind[pairs.done] == EventKind.COLLECTIVE
        is_bare &= pairs.hidden_ns <= self.maximum_hidden_share * whole_ns
        done = pairs.done[is_bare]
        claims = intersect(
            attribution.intervals[Cause.COMMUNICATION],
            events.spans(done),
        )
        waited_ns = total_ns(claims)
        if self.is_minor(waited_ns, signals):
            return
        cost_ns = overlap_ns(claims, events.start_ns[done], events.end_ns[done])
        hideable_ns = min(waited_ns, attribution.window_ns - waited_ns)
        yield Finding(
            instance=count_per_step(len(done), "collective", signals),
            summary=(
                f"{per_step(waited_ns, signals)} is spent waiting for collectives with nothing"
                " computed between start and done"
                f" ({count_per_step(len(done), 'such collective', signals)})."
            ),
            saving=Saving(0, hideable_ns // 2, waited_ns, claims, "heuristic"),
            evidence=(
                events_by_name(
                    "Collectives with nothing computed between start and done",
                    "Operation",
                    trace,
                    done,
                    (
                        (Column("between_ns", "Start to done", "ns"), pairs.between_ns[is_bare]),
                        (Column("waited_ns", "Waited", "ns"), cost_ns),
                    ),
                ),
                costliest("Longest waits", signals.worker, done.astype(np.int32), cost_ns),
            ),
            remedies=advise("tpu-latency-hiding", "unrolled-gathers", "bucketed-gradients"),
        )


class HostOffloadCopies(Rule):
    """The device waits for arrays that the program keeps in host memory."""

    id = "host-offload-copies"
    title = "Keep arrays on the device, or hide their transfers"
    needs = (Need.DEVICE_EVENTS, Need.TILED_LAYOUTS)
    is_preview = False

    minimum_share = Limit(
        0.02, "share", "The first array of a step has no compute to overlap with."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        claims, window_ns = offload_waits(signals), signals.attribution.window_ns
        waited_ns = total_ns(claims)
        if self.is_minor(waited_ns, signals):
            return
        low_ns, rows = min(waited_ns, window_ns - waited_ns), offload_rows(signals)
        cost_ns = time_within(signals, rows, claims)
        is_waiting = cost_ns > 0
        copies = executions(
            signals, [o for o in offload_copies(signals) if not o.opcode.endswith("-start")]
        )
        table = _by_copy(signals, rows, cost_ns)
        yield Finding(
            instance=f"{table.rows[0][0]}, {table.rows[0][1]}",
            summary=(
                f"{per_step(waited_ns, signals)} is spent waiting for arrays in host memory"
                f" ({count_per_step(len(copies), 'copy', signals, plural='copies')}),"
                f" mostly for {table.rows[0][0]}, {table.rows[0][1]}."
            ),
            saving=Saving(
                low_ns,
                waited_ns if _would_fit(signals) else (low_ns + waited_ns) // 2,
                waited_ns,
                claims,
                "measured",
            ),
            evidence=(
                table,
                costliest("Longest waits", signals.worker, rows[is_waiting], cost_ns[is_waiting]),
            ),
            remedies=advise("less-offloading", "offload-by-name", "overlapped-offloading"),
        )


def _would_fit(signals: Signals) -> bool:
    """Whether the device has room for all arrays in host memory, as far as the profile tells."""
    memory = signals.memory
    if memory is None or memory.peak_allocated_bytes is None or memory.capacity_bytes is None:
        return False
    room_bytes = ROOM_SHARE * memory.capacity_bytes - memory.peak_allocated_bytes
    return host_bytes(signals) <= room_bytes


def _by_copy(signals: Signals, rows: Int32, cost_ns: Int64) -> Table:
    """Bytes of each copy, its wait, and the compute that overlaps it; the costliest first."""
    trace, pairs = signals.trace, async_pairs(signals)
    count_of_ops = len(trace.hlo.name)
    op = trace.operations(rows)
    waited = np.bincount(op, weights=cost_ns, minlength=count_of_ops)
    times = np.bincount(op, minlength=count_of_ops)
    hidden = np.bincount(pairs.op, weights=pairs.hidden_ns, minlength=count_of_ops)
    table: list[tuple[str, str, int, int, int, int]] = [
        (
            operation.name,
            "device to host" if is_to_host(operation) else "host to device",
            copied_bytes(operation),
            int(times[operation.op]),
            int(waited[operation.op]),
            int(hidden[operation.op]),
        )
        for operation in offload_copies(signals)
        if waited[operation.op] > 0
    ]
    ranked = sorted(table, key=lambda row: -row[4])
    return Table(
        "Copies to and from host memory",
        (
            Column("op", "Operation"),
            Column("direction", "Direction"),
            Column("size_bytes", "Bytes each", "bytes"),
            Column("count", "Count", "count"),
            Column("waited_ns", "Waited", "ns"),
            Column("hidden_ns", "Overlapped by compute", "ns"),
        ),
        tuple(ranked),
    )
