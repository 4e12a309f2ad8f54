"""Transfers between TPU slices that the network cannot carry in time."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.finding import Column, Finding, Saving, Table, costliest
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.signals.tpu.cross_slice import CrossSlice, cross_slice
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.trace.intervals import intersect, overlap_ns, total_ns, union
from tb_perfadvisor.trace.tables import Int64
from tb_perfadvisor.units import NS_PER_S


class SlowCrossSlice(Rule):
    """Transfers between slices take longer than the compute that overlaps them.

    What it finds
    -------------
    Waits for transfers over the data-center network between TPU slices, with the bandwidth that
    would have been needed to finish in time.

    Why it matters
    --------------
    The network between slices is far slower than the links within a slice. Every core waits for
    whatever the network cannot carry while it computes.

    How it is measured
    ------------------
    Each wait (`recv-done`, `send-done`) is matched with its start. The time between them is the
    slack: bytes divided by slack is the bandwidth needed, and bytes divided by slack plus wait is
    an upper bound of the bandwidth available. High is the exposed communication in the waits,
    expected is half of it, and low is 0: the profile does not show how much of a wait is for a late
    slice.

    When to ignore
    --------------
    When one slice is late: compare the steps of the slices first.

    How to verify
    -------------
    The bandwidth needed falls below what the network carries, and the waits are gone.

    References:
    ----------
    OpenXLA, XProf documentation, "Megascale stats"; Google Cloud, "Cloud TPU Multislice
    overview".
    """

    id = "slow-cross-slice"
    title = "Send less data between slices, or send it earlier"
    category = "xla"
    refines = "exposed-communication"
    needs = (Need.DEVICE_EVENTS, Need.COLLECTIVES, Need.TILED_LAYOUTS)

    minimum_share = Limit(
        0.02, "share", "The last transfer of a step has little compute left to overlap with."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when cores wait long for the network between slices."""
        events, transfers = signals.trace.events, cross_slice(signals)
        done = transfers.done
        claims = intersect(
            signals.attribution.intervals[Cause.COMMUNICATION],
            union(events.start_ns[done], events.end_ns[done]),
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
