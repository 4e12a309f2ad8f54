"""Copies to the device from memory that the system may page out."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.call_sites import work_by_call_site
from tb_perfadvisor.rules.finding import Finding, Remedy, costliest
from tb_perfadvisor.rules.savings.faster_device_work import faster_device_work
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.device.device_work import time_within, work_rows
from tb_perfadvisor.trace import CopyDirection, EventKind
from tb_perfadvisor.trace.tables import Int32, Int64
from tb_perfadvisor.units import NS_PER_S, format_rate

_LATEST_LINK = 4
"""PCIe 5.0 has four times the bandwidth of 3.0 (PCI-SIG)."""
_LARGE_BYTES = 1 << 20
"""Below a mebibyte the latency of a copy hides the bandwidth of the link."""

_REMEDIES = (
    Remedy(
        text="Let the loader put batches into pinned memory, and copy them without waiting.",
        snippet=(
            "loader = DataLoader(dataset, pin_memory=True, num_workers=4)\n"
            "for images, labels in loader:\n"
            "    images = images.to(device, non_blocking=True)\n"
            "    labels = labels.to(device, non_blocking=True)"
        ),
        framework="pytorch",
        reference="https://pytorch.org/tutorials/intermediate/pinmem_nonblock.html",
    ),
    Remedy(
        text="Feed the step from tf.data, which copies from pinned buffers.",
        snippet='dataset = dataset.apply(tf.data.experimental.prefetch_to_device("/GPU:0"))',
        framework="tensorflow",
        reference="https://www.tensorflow.org/api_docs/python/tf/data/experimental/"
        "prefetch_to_device",
    ),
    Remedy(
        text="Transfer the next batch while the current one is computed.",
        snippet="upcoming = jax.device_put(next(batches))  # returns before it is done",
        framework="jax",
        reference="https://docs.jax.dev/en/latest/_autosummary/jax.device_put.html",
    ),
)


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
    copies would save at the bandwidth of pinned memory: the configured limit, or the fastest large
    pinned copy of the profile. High assumes the fastest link there is. Low is 0, because the
    profile does not say which link it is. Where the profile allows it, the steps are replayed with
    the faster copies.

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
        "Pinned memory reaches 12 to 13 GB/s over PCIe 3.0 with 16 lanes, the slowest link in "
        "use with data center devices.",
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when pinning would save a large part of the step."""
        rows, size_bytes = _pageable(signals)
        if not len(rows):
            return
        bandwidth = max(self.pinned_bandwidth, _pinned_bandwidth(signals))
        then_ns = (size_bytes / bandwidth * NS_PER_S).astype(np.int64)
        saving = faster_device_work(
            signals, rows, then_ns, basis="modeled", least_then_ns=then_ns // _LATEST_LINK
        )
        if self.is_minor(saving.expected_ns, signals):
            return
        cost_ns = time_within(signals, rows, saving.claims)
        moved_ns = max(int(signals.trace.events.duration_ns[rows].sum()), 1)
        rate = format_rate(int(size_bytes.sum()) / moved_ns * NS_PER_S, "B/s")
        yield Finding(
            summary=(
                f"Copies from pageable memory take {per_step(int(cost_ns.sum()), signals)}:"
                f" {count_per_step(len(rows), 'copy', signals, plural='copies')} at only {rate}."
            ),
            saving=saving,
            evidence=(
                work_by_call_site(
                    "Copies from pageable memory by call site", signals, rows, cost_ns
                ),
                costliest("Longest copies", signals.worker, rows, cost_ns),
            ),
            remedies=_REMEDIES,
        )


def _pageable(signals: Signals) -> tuple[Int32, Int64]:
    """Copies to the device from pageable memory in the used steps, and their bytes."""
    trace, copies = signals.trace, signals.trace.copies
    rows = work_rows(signals)
    rows = rows[trace.events.kind[rows] == EventKind.COPY]
    direction = trace.by_event(copies.row, copies.direction, CopyDirection.UNKNOWN)[rows]
    pageable = trace.by_event(copies.row, copies.pageable, -1)[rows]
    size_bytes = trace.by_event(copies.row, copies.size_bytes, -1)[rows]
    is_chosen = (direction == CopyDirection.HOST_TO_DEVICE) & (pageable == 1) & (size_bytes > 0)
    return rows[is_chosen], size_bytes[is_chosen]


def _pinned_bandwidth(signals: Signals) -> float:
    """The highest bandwidth of a large copy from pinned memory in bytes/s; 0 without one."""
    trace, copies = signals.trace, signals.trace.copies
    is_pinned = (copies.direction == CopyDirection.HOST_TO_DEVICE) & (copies.pageable == 0)
    is_pinned &= copies.size_bytes >= _LARGE_BYTES
    duration_ns = trace.events.duration_ns[copies.row[is_pinned]]
    rates = copies.size_bytes[is_pinned] / np.maximum(duration_ns, 1) * NS_PER_S
    return float(rates.max(initial=0.0))
