"""Buffers that DistributedDataParallel broadcasts in every forward pass."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tables import events_by_name
from tb_perfadvisor.rules.finding import Column, Finding, Saving, costliest
from tb_perfadvisor.signals import Cause, Need, Signals, collectives_of
from tb_perfadvisor.signals.core.collectives import exposed_part
from tb_perfadvisor.signals.host.buffer_broadcasts import buffer_broadcasts
from tb_perfadvisor.signals.host.idle_owners import IdleOwner, idle_owners
from tb_perfadvisor.signals.ranks.collective_roles import Role
from tb_perfadvisor.signals.ranks.exposed_communication import has_role
from tb_perfadvisor.trace.intervals import join, total_ns
from tb_perfadvisor.units import format_duration
from tb_perfadvisor.whatif import Remove, Shorten


class DdpBufferBroadcast(Rule):
    """DistributedDataParallel broadcasts the buffers of rank 0 before each forward pass.

    What it finds
    -------------
    Forward passes of DistributedDataParallel that begin with packing the model's buffers,
    broadcasting them, and copying them back one by one, while the device waits.

    Why it matters
    --------------
    By default, all ranks take over the buffers of rank 0 before each forward pass. For a network
    with BatchNorm these are hundreds of tiny tensors, each with its own copy. The values are the
    running statistics, which training does not read.

    How it is measured
    ------------------
    Low is the idle time of the device while the host packs, sends and unpacks. Expected adds the
    transfer of the broadcasts that no compute overlaps, if all ranks were profiled, or is what the
    steps save when they are replayed without all this. High adds all exposed time of the
    broadcasts, which may be waiting for rank 0.

    When to ignore
    --------------
    When buffers must be the same on all ranks in training: statistics that the forward pass reads,
    moving averages of weights, queues of contrastive learning. With BatchNorm, each rank then keeps
    the running statistics of its own batches; broadcast them once before an evaluation or a
    checkpoint, or evaluate on rank 0 only. SyncBatchNorm agrees on its statistics without that.

    How to verify
    -------------
    `DistributedDataParallel.forward` begins with the model's first layer, and the broadcasts are
    gone. The accuracy on held-out data stays the same.

    References:
    ----------
    PyTorch documentation, `DistributedDataParallel`, parameters `broadcast_buffers` and, since
    PyTorch 2.13, `forward_sync_buffers`.
    """

    id = "ddp-buffer-broadcast"
    title = "Do not broadcast buffers in every forward pass"
    category = "communication"
    needs = (Need.PYTORCH, Need.DEVICE_EVENTS, Need.HOST_EVENTS)
    is_preview = False

    minimum_share = Limit(0.01, "share", "A few buffers take less, and changing them needs care.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when the device waits for broadcasts of buffers."""
        broadcasts = buffer_broadcasts(signals)
        if not broadcasts.forwards:
            return
        trace, collectives = signals.trace, collectives_of(signals)
        idle = idle_owners(signals)[IdleOwner.BUFFER_BROADCAST]
        chosen = has_role(signals, Role.BUFFERS)
        rows = collectives.row[chosen]
        communication = signals.attribution.intervals[Cause.COMMUNICATION]
        claims = join(idle, exposed_part(trace, rows, communication))
        high_ns, idle_ns = total_ns(claims), total_ns(idle)
        if self.is_minor(high_ns, signals):
            return
        transfer_ns = np.minimum(collectives.transfer_ns, collectives.exposed_ns)[chosen]
        sent_ns = int(transfer_ns.sum()) if (transfer_ns >= 0).all() else 0
        operators = broadcasts.operators
        host_ns = format_duration(total_ns(broadcasts.spans) / broadcasts.forwards)
        yield Finding(
            instance=f"the host needs {host_ns} each time",
            summary=(
                f"The device waits {per_step(high_ns, signals)} while DistributedDataParallel"
                f" broadcasts the model's buffers; the host needs {host_ns} for that in each"
                " forward pass."
            ),
            saving=Saving(
                idle_ns,
                min(idle_ns + sent_ns, high_ns),
                high_ns,
                claims,
                "measured",
                (Remove(broadcasts.spans), Shorten(rows, np.zeros(len(rows), dtype=np.int64))),
            ),
            evidence=(
                events_by_name(
                    "What the host does for the buffers",
                    "Operator",
                    trace,
                    operators,
                    ((Column("host_ns", "Time", "ns"), trace.events.duration_ns[operators]),),
                ),
                costliest(
                    "Longest of these operators",
                    signals.worker,
                    operators,
                    trace.events.duration_ns[operators],
                ),
            ),
            remedies=advise("no-buffer-broadcast"),
        )
