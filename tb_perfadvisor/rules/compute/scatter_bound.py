"""Indexed additions that wait for one another."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.call_sites import costly_work
from tb_perfadvisor.rules.finding import Finding
from tb_perfadvisor.rules.savings.faster_device_work import halfway_to_best
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.device.scatters import scatters
from tb_perfadvisor.signals.work.achievable_time import MIN_KERNEL_NS
from tb_perfadvisor.units import NS_PER_S


class ScatterBound(Rule):
    """Atomic additions to the same rows wait for one another.

    What it finds
    -------------
    PyTorch kernels for `scatter_add`, `index_add` and embedding gradients that use atomic additions
    and take much longer than their memory traffic explains.

    Why it matters
    --------------
    Atomic additions to one address happen one after another. If many values are added to few rows,
    most of the device's thousands of threads wait in line.

    How it is measured
    ------------------
    The bytes that a kernel must move (the index and the values once, and for each value a sum that
    is read and written) follow from the shapes and data types of its operator and take a known time
    at memory bandwidth. High is the time beyond that, expected is half of it, and low is 0. Where
    the profile allows it, replaying the steps refines the expected saving.

    When to ignore
    --------------
    When indices hardly repeat: then the scattered addresses are slow, and sorting them costs as
    much.

    How to verify
    -------------
    The kernel is gone or shorter, and so is the total including the sort and segmented sum that
    replace it.

    References:
    ----------
    NVIDIA, "CUDA C++ Programming Guide", section on atomic functions; PyTorch documentation,
    notes on `torch.Tensor.scatter_add_`.
    """

    id = "scatter-bound"
    title = "Avoid colliding atomic additions"
    category = "compute"
    needs = (
        Need.DEVICE_EVENTS,
        Need.KERNELS,
        Need.LAUNCH_LINKS,
        Need.SHAPES,
        Need.PEAKS,
        Need.PYTORCH,
    )

    minimum_share = Limit(
        0.02, "share", "Half of a smaller share is no more than the variation between steps."
    )
    minimum_ratio = Limit(
        3.0, "ratio", "Scattered addresses alone make such a kernel two to three times slower."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when indexed additions take a good part of the step."""
        facts = signals.device_facts
        peaks = facts.peaks if facts else None
        if peaks is None or peaks.memory_bandwidth_bytes_per_s is None:
            return
        bandwidth = peaks.memory_bandwidth_bytes_per_s * peaks.achievable_bandwidth
        additions = scatters(signals)
        now_ns = signals.trace.events.duration_ns[additions.rows]
        moved_ns = np.maximum(additions.traffic_bytes / bandwidth * NS_PER_S, MIN_KERNEL_NS)
        is_slow = now_ns >= self.minimum_ratio * moved_ns  # False for NaN
        rows, now_ns = additions.rows[is_slow], now_ns[is_slow]
        least_ns = moved_ns[is_slow].astype(np.int64)
        saving = halfway_to_best(signals, rows, least_ns)
        exposed_ns = saving.claimed_ns
        if self.is_minor(exposed_ns, signals):
            return
        yield Finding(
            summary=(
                f"{per_step(exposed_ns, signals)} goes into indexed additions"
                f" ({count_per_step(len(rows), 'kernel', signals)}) that take"
                f" {int(now_ns.sum()) / int(least_ns.sum()):.0f} times as long as their memory"
                " traffic needs."
            ),
            saving=saving,
            evidence=costly_work("indexed additions", signals, rows, saving.claims),
            remedies=advise("sorted-scatter", "scatter-as-product"),
        )
