"""What the steps save when copies to the device come from pinned memory."""

from __future__ import annotations

import numpy as np

from tb_perfadvisor.rules.finding import Saving
from tb_perfadvisor.rules.savings.faster_device_work import faster_device_work
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.device.pageable_copies import HostLink, PageableCopies
from tb_perfadvisor.whatif import Async, Fix, Shorten, shrink

LAUNCH_NS = 10_000
"""What the host takes to launch a copy from pinned memory: an eager operator and its call."""
SLOWER_LINK = 2
"""A PCIe generation has twice the bandwidth of the one before (PCI-SIG)."""


def saving_by_pinning(signals: Signals, copies: PageableCopies, link: HostLink) -> Saving:
    """The saving of pinned memory, copied from without waiting.

    Expected is the link's bandwidth, and low that of the generation before it, unless copies of
    this profile reached it. High is all time in which nothing else runs on the device: a copy that
    the host does not wait for may overlap other work.
    """
    then_ns = link.copy_ns(copies.size_bytes)
    saving = faster_device_work(
        signals,
        copies.rows,
        then_ns,
        basis="modeled",
        most_then_ns=then_ns * (SLOWER_LINK if link.name else 1),
    )
    return Saving(
        saving.low_ns,
        saving.expected_ns,
        saving.high_ns,
        saving.claims,
        saving.basis,
        pinning(signals, copies, link),
    )


def pinning(signals: Signals, copies: PageableCopies, link: HostLink) -> tuple[Fix, ...]:
    """What pinned memory changes: copies get faster, and the host no longer waits for them."""
    events = signals.trace.events
    now_ns = events.duration_ns[copies.rows]
    shorter = Shorten(copies.rows, np.minimum(link.copy_ns(copies.size_bytes), now_ns))
    released = shrink(events.start_ns[copies.calls], events.end_ns[copies.calls], LAUNCH_NS)
    return shorter, released, Async(np.union1d(copies.waits, copies.calls).astype(np.int32))
