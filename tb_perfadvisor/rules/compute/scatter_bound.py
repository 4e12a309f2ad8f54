"""Sums by index that wait for one another."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.call_sites import work_by_call_site
from tb_perfadvisor.rules.finding import Finding, Remedy, costliest
from tb_perfadvisor.rules.savings.faster_device_work import halfway_to_best
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.device.device_work import time_within
from tb_perfadvisor.signals.device.scatters import scatters
from tb_perfadvisor.signals.work.roofline import LEAST_NS
from tb_perfadvisor.units import NS_PER_S

_REMEDIES = (
    Remedy(
        text="Sum rows that share an index before adding them: sorted once, each sum has one "
        "writer.",
        snippet=(
            "order = index.argsort()                          # once, where indices repeat\n"
            "lengths = torch.bincount(index, minlength=rows)\n"
            'sums = torch.segment_reduce(values[order], "sum", lengths=lengths)'
        ),
        framework="pytorch",
        reference="https://pytorch.org/docs/stable/generated/torch.segment_reduce.html",
    ),
    Remedy(
        text="Into few rows, add with a matrix product in place of a scatter.",
        snippet="sums = F.one_hot(index, rows).to(values.dtype).T @ values",
        framework="pytorch",
        reference="https://pytorch.org/docs/stable/generated/torch.nn.functional.one_hot.html",
    ),
)


class ScatterBound(Rule):
    """Additions by index into the same rows wait for one another.

    What it finds
    -------------
    PyTorch's kernels for `scatter_add`, `index_add` and gradients of embeddings that add with
    atomic operations, where they take much longer than their bytes take through memory.

    Why it matters
    --------------
    Atomic additions to one address happen one after the other. Many values for few rows keep a
    device with thousands of threads waiting in a queue.

    How it is measured
    ------------------
    What a kernel must move (index and values once, and for each value a sum read and written),
    by the shapes and types of its operator, takes a known time at the memory's bandwidth. High is
    what it takes beyond that, expected half of it, low nothing. The steps are re-timed where the
    profile allows that.

    When to ignore
    --------------
    When indices hardly repeat: then it is the scattered addresses that cost, and sorting them
    costs as much.

    How to verify
    -------------
    The kernel is gone or shorter, the sort and the segment sum that replace it together as well.

    References:
    ----------
    NVIDIA, "CUDA C++ Programming Guide", section on atomic functions; PyTorch documentation,
    notes on `torch.Tensor.scatter_add_`.
    """

    id = "scatter-bound"
    title = "Sum by index without collisions"
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
        0.02, "share", "Of a fiftieth of the step half would be saved: no more than a step varies."
    )
    minimum_ratio = Limit(
        3.0, "ratio", "Scattered addresses alone make such a kernel two or three times slower."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when sums by index take a good part of the step."""
        facts = signals.device_facts
        peaks = facts.peaks if facts else None
        if peaks is None or peaks.memory_bandwidth_bytes_per_s is None:
            return
        bandwidth = peaks.memory_bandwidth_bytes_per_s * peaks.achievable_bandwidth
        found = scatters(signals)
        now_ns = signals.trace.events.duration_ns[found.rows]
        moved_ns = np.maximum(found.traffic_bytes / bandwidth * NS_PER_S, LEAST_NS)
        is_slow = now_ns >= self.minimum_ratio * moved_ns  # NaN is not
        rows, now_ns = found.rows[is_slow], now_ns[is_slow]
        least_ns = moved_ns[is_slow].astype(np.int64)
        saving = halfway_to_best(signals, rows, least_ns)
        exposed_ns = saving.claimed_ns
        if self.is_minor(exposed_ns, signals):
            return
        cost_ns = time_within(signals, rows, saving.claims)
        yield Finding(
            summary=(
                f"{per_step(exposed_ns, signals)} is sums by index"
                f" ({count_per_step(len(rows), 'kernel', signals)}) that take"
                f" {int(now_ns.sum()) / int(least_ns.sum()):.0f} times as long as their bytes."
            ),
            saving=saving,
            evidence=(
                work_by_call_site("Sums by index, by place", signals, rows, cost_ns),
                costliest("The longest of them", signals.worker, rows, cost_ns),
            ),
            remedies=_REMEDIES,
        )
