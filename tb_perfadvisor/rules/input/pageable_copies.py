"""Copies to the device from memory that the system may page out."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.call_sites import work_by_call_site
from tb_perfadvisor.rules.finding import Finding, costliest
from tb_perfadvisor.rules.savings.pinned_memory import saving_by_pinning
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.device.device_work import time_within
from tb_perfadvisor.signals.device.pageable_copies import HostLink, host_link, pageable_copies
from tb_perfadvisor.signals.device.streamed_weights import streamed_weights
from tb_perfadvisor.units import NS_PER_S, format_rate

_BATCHES = ("pinned-memory", "prefetch-to-device")
_WEIGHTS = ("weights-ahead", "resident-weights")


class PageableCopies(Rule):
    """Batches are copied to the device from pageable memory, through a driver's buffer.

    What it finds
    -------------
    Exposed copies from pageable host memory to the device that run below the bandwidth of the
    link.

    Why it matters
    --------------
    The device can only read memory that cannot be paged out. The driver first copies pageable
    memory into a pinned buffer, piece by piece, and the host waits for it.

    How it is measured
    ------------------
    From the bytes copied and the time in which the device does nothing else. Expected is what the
    copies would save at the bandwidth of pinned memory: that of the fastest large pinned copy in
    the profile, else what copies from pinned memory reach over the device's link to the host, else
    the configured bandwidth. Low assumes a link of half that bandwidth, unless a copy of the
    profile reached it. High is all of the time, because a copy that the host does not wait for may
    overlap other work. Where the profile allows it, the steps are replayed with faster copies
    that the host only launches.

    When to ignore
    --------------
    When the host is short of memory: pinned memory cannot be paged out.

    How to verify
    -------------
    The trace viewer calls the copies `Pinned -> Device`, and they move more bytes per second.

    References:
    ----------
    NVIDIA, "How to Optimize Data Transfers in CUDA C/C++"; PyTorch tutorial, "A guide on good
    usage of non_blocking and pin_memory".
    """

    id = "pageable-copies"
    title = "Copy batches from pinned memory"
    category = "input"
    needs = (Need.DEVICE_EVENTS, Need.KERNELS, Need.HOST_MEMORY)
    refines = "exposed-copies"
    is_preview = False

    minimum_share = Limit(
        0.01, "share", "Pinning memory is not worth it for less than 1 % of the step."
    )
    pinned_bandwidth = Limit(
        12e9,
        "bytes/s",
        "Where the link is unknown: pinned memory reaches 12 to 13 GB/s over PCIe 3.0 with 16"
        " lanes, the slowest link in use with data center devices.",
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when pinning would save a large part of the step."""
        copies = pageable_copies(signals)
        rows = copies.rows
        if not len(rows):
            return
        link = host_link(signals) or HostLink("unknown", self.pinned_bandwidth)
        saving = saving_by_pinning(signals, copies, link)
        if self.is_minor(saving.expected_ns, signals):
            return
        cost_ns = time_within(signals, rows, saving.claims)
        moved_ns = max(int(signals.trace.events.duration_ns[rows].sum()), 1)
        rate = format_rate(int(copies.size_bytes.sum()) / moved_ns * NS_PER_S, "B/s")
        pinned = format_rate(link.bandwidth_bytes_per_s, "B/s")
        of_weights = streamed_weights(signals) is not None
        yield Finding(
            title="Copy weights from pinned memory" if of_weights else "",
            instance=f"{rate} now, {pinned} if pinned",
            summary=(
                f"Copies from pageable memory take {per_step(int(cost_ns.sum()), signals)}:"
                f" {count_per_step(len(rows), 'copy', signals, plural='copies')} at only {rate},"
                f" where pinned memory reaches {pinned}."
            ),
            saving=saving,
            evidence=(
                work_by_call_site(
                    "Copies from pageable memory by call site", signals, rows, cost_ns
                ),
                costliest("Longest copies", signals.worker, rows, cost_ns),
            ),
            remedies=advise(*(_WEIGHTS if of_weights else _BATCHES)),
        )
