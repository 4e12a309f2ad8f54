"""Operators of a TPU program that run on its host."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tables import events_by_name
from tb_perfadvisor.rules.finding import Column, Evidence, Finding, Remedy, Saving, Table, costliest
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

_REMEDIES = (
    Remedy(
        text="Keep summaries, strings and printing out of the function that the TPU runs: return "
        "the numbers, and write them from the host every hundredth step.",
        snippet=(
            "losses = strategy.run(train_step, args=(next(batches),))\n"
            "if step % 100 == 0:\n"
            "    with writer.as_default():\n"
            "        tf.summary.scalar('loss', strategy.reduce('MEAN', losses, None), step=step)"
        ),
        framework="tensorflow",
        reference="https://www.tensorflow.org/api_docs/python/tf/tpu",
    ),
    Remedy(
        text="Do what the TPU cannot in the input pipeline, where it runs ahead of the step.",
        snippet=(
            "table = tf.keras.layers.StringLookup(vocabulary=words)\n"
            "dataset = dataset.map(lambda text, label: (table(text), label),\n"
            "                      num_parallel_calls=tf.data.AUTOTUNE)"
        ),
        framework="tensorflow",
        reference="https://www.tensorflow.org/guide/data_performance",
    ),
)


class OutsideCompilation(Rule):
    """A TPU core waits in the middle of a step for operators that run on the host.

    What it finds
    -------------
    Sends to the host and receives from it within a compiled program of TensorFlow: what
    `tf.tpu.outside_compilation` and soft placement leave on the host.

    Why it matters
    --------------
    The core sends what such an operator needs, waits while the host computes, and receives what
    comes of it; XLA can neither fuse nor move anything across it.

    How it is measured
    ------------------
    The part of the cause *copies* in which the core does nothing but wait in such sends and
    receives. High and expected are all of it; low is 0, as the operators may have no other place.
    What JAX programs exchange with their host are callbacks (host-callback tells of those), and
    transfers between slices are communication.

    When to ignore
    --------------
    When it is done in few steps, such as writing summaries, and the profile happens to have them.

    How to verify
    -------------
    No `send` or `recv` with `is_host_transfer` is left in the program, and the step is shorter.

    References:
    ----------
    TensorFlow API documentation, "tf.tpu.outside_compilation"; XProf's limit for its own advice
    on it is five percent of the device's time.
    """

    id = "outside-compilation"
    title = "Bring the host's operators out of the TPU's step"
    category = "placement"
    needs = (Need.DEVICE_EVENTS, Need.TILED_LAYOUTS)

    minimum_share = Limit(0.05, "share", "XProf, too, speaks of it from five percent on.")

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
            summary=(
                f"The core waits {per_step(waited_ns, signals)} for operators that run on the"
                f" host ({count_per_step(len(rows), 'transfer', signals)}), most in"
                f" {table.rows[0][0]}."
            ),
            saving=Saving(0, waited_ns, waited_ns, waits, "measured"),
            evidence=(
                table,
                *_meanwhile(signals, waits),
                costliest("The longest waits", signals.worker, rows, cost_ns),
            ),
            remedies=_REMEDIES,
        )


def _by_transfer(signals: Signals, rows: Int32, cost_ns: Int64) -> Table:
    """Each operation's waits, the costliest first."""
    trace = signals.trace
    size = len(trace.hlo.name)
    op = trace.operations(rows)
    waited, times = np.bincount(op, cost_ns, size), np.bincount(op, minlength=size)
    ranked = sorted(host_transfers(signals), key=lambda one: -waited[one.op])
    return Table(
        "Transfers to and from the host",
        (
            Column("op", "Operation"),
            Column("channel", "Channel"),
            Column("path", "Called by"),
            Column("count", "Times", "count"),
            Column("waited_ns", "Waited", "ns"),
        ),
        tuple(
            (one.name, channel_of(one), one.path, int(times[one.op]), int(waited[one.op]))
            for one in ranked
        ),
    )


def _meanwhile(signals: Signals, waits: Intervals) -> tuple[Evidence, ...]:
    """What the host computed while the core waited, if any of it was recorded."""
    rows = signals.trace.rows(EventKind.OPERATOR)
    inside_ns = time_within(signals, rows, waits)
    rows, inside_ns = rows[inside_ns > 0], inside_ns[inside_ns > 0]
    if not len(rows):
        return ()
    column = Column("inside_ns", "While the core waited", "ns")
    return (
        events_by_name(
            "Operators of the host", "Operator", signals.trace, rows, ((column, inside_ns),)
        ),
    )
