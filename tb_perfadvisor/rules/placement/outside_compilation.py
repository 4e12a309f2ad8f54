"""Operators of a TPU program run on the host."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tables import events_by_name
from tb_perfadvisor.rules.finding import Column, Evidence, Finding, Saving, Table, costliest
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.device.device_work import time_within
from tb_perfadvisor.signals.tpu.host_transfers import (
    channel_of,
    host_transfers,
    transfer_rows,
    transfer_waits,
)
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.intervals import Intervals, total_ns
from tb_perfadvisor.trace.tables import Int32, Int64


class OutsideCompilation(Rule):
    """A TPU core waits in the middle of a step for operators that run on the host.

    What it finds
    -------------
    Sends to the host and receives from it inside a compiled TensorFlow program: what
    `tf.tpu.outside_compilation` and soft placement leave on the host.

    Why it matters
    --------------
    The core sends the inputs of such an operator, waits while the host computes, and receives the
    result. XLA cannot fuse or move anything across it.

    How it is measured
    ------------------
    The part of the time attributed to *copies* in which the core does nothing but wait in such
    sends and receives. High and expected are all of it. Low is 0, because the operators may have
    to stay on the host. In JAX programs, transfers to the host are callbacks, which host-callback
    reports; transfers between slices are communication.

    When to ignore
    --------------
    When only few steps do it, for example to write summaries, and the profile happens to contain
    them.

    How to verify
    -------------
    The program has no `send` or `recv` with `is_host_transfer`, and the step is shorter.

    References:
    ----------
    TensorFlow API documentation, "tf.tpu.outside_compilation"; XProf also advises on it from five
    percent of the device's time.
    """

    id = "outside-compilation"
    title = "Move host operators out of the TPU step"
    category = "placement"
    needs = (Need.DEVICE_EVENTS, Need.TILED_LAYOUTS)

    minimum_share = Limit(0.05, "share", "XProf also reports it from 5 % of the device's time on.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when the core waits for the host."""
        if signals.trace.source.framework == "jax":
            return
        waits = transfer_waits(signals)
        waited_ns = total_ns(waits)
        if self.is_minor(waited_ns, signals):
            return
        rows = transfer_rows(signals)
        cost_ns = time_within(signals, rows, waits)
        table = _by_transfer(signals, rows, cost_ns)
        yield Finding(
            instance=f"{table.rows[0][0]}",
            summary=(
                f"The TPU core waits {per_step(waited_ns, signals)} for operators that run on the"
                f" host ({count_per_step(len(rows), 'transfer', signals)}), mostly in"
                f" {table.rows[0][0]}."
            ),
            saving=Saving(0, waited_ns, waited_ns, waits, "measured"),
            evidence=(
                table,
                *_host_operators(signals, waits),
                costliest("Longest waits", signals.worker, rows, cost_ns),
            ),
            remedies=advise("summaries-on-host", "lookup-in-input"),
        )


def _by_transfer(signals: Signals, rows: Int32, cost_ns: Int64) -> Table:
    """Waits by operation, the costliest first."""
    trace = signals.trace
    size = len(trace.hlo.name)
    op = trace.operations(rows)
    waited, times = np.bincount(op, cost_ns, size), np.bincount(op, minlength=size)
    ranked = sorted(host_transfers(signals), key=lambda transfer: -waited[transfer.op])
    return Table(
        "Transfers to and from the host",
        (
            Column("op", "Operation"),
            Column("channel", "Channel"),
            Column("path", "Called by"),
            Column("count", "Count", "count"),
            Column("waited_ns", "Wait", "ns"),
        ),
        tuple(
            (
                transfer.name,
                channel_of(transfer),
                transfer.path,
                int(times[transfer.op]),
                int(waited[transfer.op]),
            )
            for transfer in ranked
        ),
    )


def _host_operators(signals: Signals, waits: Intervals) -> tuple[Evidence, ...]:
    """Operators that the host ran while the core waited, if they were recorded."""
    rows = signals.trace.rows(EventKind.OPERATOR)
    inside_ns = time_within(signals, rows, waits)
    rows, inside_ns = rows[inside_ns > 0], inside_ns[inside_ns > 0]
    if not len(rows):
        return ()
    column = Column("inside_ns", "While the core waited", "ns")
    return (
        events_by_name(
            "Operators on the host", "Operator", signals.trace, rows, ((column, inside_ns),)
        ),
    )
