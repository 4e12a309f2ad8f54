"""64-bit compute in a program that otherwise uses narrower types."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.call_sites import costly_work
from tb_perfadvisor.rules.finding import Finding
from tb_perfadvisor.rules.savings.faster_device_work import faster_device_work
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.core.causes import COMPUTE, Cause
from tb_perfadvisor.signals.work.roofline import MATRIX_FAMILIES
from tb_perfadvisor.trace import EventKind, KernelFamily, Precision
from tb_perfadvisor.trace.integer_groups import is_in
from tb_perfadvisor.trace.tables import Int32
from tb_perfadvisor.units import format_share


class DoublePrecision(Rule):
    """Part of the device's work is in 64-bit numbers, in a program of narrower ones.

    What it finds
    -------------
    Kernels that compute in 64-bit floating point, where they are the smaller part of the device's
    compute. Typical sources are a NumPy array without an explicit type and a Python constant that
    becomes a tensor.

    Why it matters
    --------------
    64-bit numbers take twice the memory and bandwidth, and most devices compute in them at a small
    fraction of the 32-bit rate: 1/32 or 1/64 on consumer GPUs.

    How it is measured
    ------------------
    The time in which nothing else runs on the device. In 32 bits, matrix kernels run at the 32-bit
    peak rate where both peaks are known. All other kernels move half the bytes and save half of
    their time. High and expected are that, low is half of it. Where the profile allows it,
    replaying the steps refines the expected saving.

    When to ignore
    --------------
    When the computation needs 64 bits: sums over very many terms, geometry, time stamps. If most of
    the compute is in 64 bits, it is intended, and nothing is reported.

    How to verify
    -------------
    The 64-bit share of compute time falls to zero.

    References:
    ----------
    NVIDIA, "CUDA C++ programming guide", throughput of native arithmetic instructions.
    """

    id = "double-precision"
    title = "Remove accidental 64-bit compute"
    category = "precision"
    needs = (Need.DEVICE_EVENTS, Need.KERNEL_PRECISION)
    is_preview = False

    minimum_share = Limit(0.01, "share", "A counter and a learning rate take less than this.")
    maximum_compute_share = Limit(
        0.5, "share", "A program that computes mostly in 64 bits does so on purpose."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when 64-bit kernels take a good part, but not most, of the compute."""
        rows = _double_rows(signals)
        now_ns = signals.trace.events.duration_ns[rows]
        then_ns = np.rint(now_ns * _factor(signals, rows)).astype(np.int64)
        saving = faster_device_work(
            signals,
            rows,
            then_ns,
            basis="modeled",
            least_then_ns=then_ns,
            most_then_ns=(now_ns + then_ns) // 2,
        )
        exposed_ns = saving.claimed_ns
        if self.is_minor(exposed_ns, signals):
            return
        attribution = signals.attribution
        share = attribution.total_ns(Cause.COMPUTE_64) / attribution.total_ns(*COMPUTE)
        if share > self.maximum_compute_share:
            return
        yield Finding(
            summary=(
                f"{per_step(exposed_ns, signals)} is 64-bit compute,"
                f" {format_share(share)} of all compute."
            ),
            saving=saving,
            evidence=costly_work("64-bit kernels", signals, rows, saving.claims),
            remedies=advise("single-precision"),
        )


def _double_rows(signals: Signals) -> Int32:
    events, rows, window = signals.trace.events, signals.device.rows, signals.attribution
    is_double = (signals.precision == Precision.BITS_64) & (events.kind[rows] == EventKind.KERNEL)
    is_double &= events.start_ns[rows] < window.window_end_ns
    is_double &= events.end_ns[rows] > window.window_start_ns
    found: Int32 = rows[is_double]
    return found


def _factor(signals: Signals, rows: Int32) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Time of each kernel in 32 bits relative to now; shape (n,)."""
    kernels, facts = signals.trace.kernels, signals.device_facts
    family = signals.trace.by_event(kernels.row, kernels.family, KernelFamily.OTHER)[rows]
    factor = np.full(len(rows), 0.5)
    peaks = facts.peaks if facts else None
    slow, fast = (peaks.flop_per_s(f) if peaks else None for f in ("fp64", "fp32"))
    if slow and fast:
        factor[is_in(family, MATRIX_FAMILIES)] = min(slow / fast, 1.0)
    return factor
