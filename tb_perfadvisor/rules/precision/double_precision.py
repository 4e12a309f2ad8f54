"""64-bit compute: on a device, in a program that otherwise uses narrower types; on the CPU, any."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step, share_of_window
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.call_sites import costly_work
from tb_perfadvisor.rules.evidence.tables import events_by_name
from tb_perfadvisor.rules.finding import Column, Finding, Saving, costliest
from tb_perfadvisor.rules.savings.faster_device_work import faster_device_work
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.core.causes import COMPUTE, Cause
from tb_perfadvisor.signals.work.layer_forms import in_32_bits
from tb_perfadvisor.signals.work.roofline import MATRIX_FAMILIES
from tb_perfadvisor.trace import EventKind, KernelFamily, Precision
from tb_perfadvisor.trace.integer_groups import is_in
from tb_perfadvisor.trace.tables import Int32
from tb_perfadvisor.units import format_share

_LEAST_SHARE_ON_CPU = 0.05
"""Comparing the results of two precisions is not worth it for less."""


class DoublePrecision(Rule):
    """Part of the work is in 64-bit numbers, in a program of narrower ones or on the CPU.

    What it finds
    -------------
    Kernels that compute in 64-bit floating point, where they are the smaller part of the device's
    compute. Typical sources are a NumPy array without an explicit type and a Python constant that
    becomes a tensor.

    In a PyTorch program on the CPU, all operators that read 64-bit floating point numbers: there, a
    model was often turned to 64 bits to match NumPy's arrays.

    Why it matters
    --------------
    64-bit numbers take twice the memory and bandwidth, and most devices compute in them at a small
    fraction of the 32-bit rate: 1/32 or 1/64 on consumer GPUs. Vector instructions of a CPU compute
    half as many of them at once, and its fast kernels for convolutions and recurrent layers are for
    32 bits only.

    How it is measured
    ------------------
    On a device, the time in which nothing else runs on it. In 32 bits, matrix kernels run at the
    32-bit peak rate where both peaks are known. All other kernels move half the bytes and save half
    of their time. High and expected are that, low is half of it. Where the profile allows it,
    replaying the steps refines the expected saving.

    On the CPU, matrix products and elementwise operators are expected to keep half of their time in
    32 bits, convolutions 35 %. Low and high are the least and the most that was measured with
    PyTorch 2.13 on one core. Operators of less than 20 microseconds consist of dispatch and count
    as they are. A finding needs an expected saving of 5 % there: comparing the results of two
    precisions is not worth it for less.

    When to ignore
    --------------
    When the computation needs 64 bits: sums over very many terms, solvers of linear systems,
    simulations, geometry, time stamps. If most of a device's compute is in 64 bits, it is intended,
    and nothing is reported.

    How to verify
    -------------
    The 64-bit share of compute time falls to zero, and the results are close enough.

    References:
    ----------
    NVIDIA, "CUDA C++ programming guide", throughput of native arithmetic instructions; PyTorch
    documentation, "Tensor attributes", torch.dtype; NumPy documentation, "Data types".
    """

    id = "double-precision"
    title = "Remove accidental 64-bit compute"
    category = "precision"
    needs = (Need.DEVICE_EVENTS, Need.KERNEL_PRECISION)
    needs_on_cpu = (Need.WORK, Need.HOST_EVENTS, Need.PYTORCH)
    is_preview = False

    minimum_share = Limit(0.01, "share", "A counter and a learning rate take less than this.")
    maximum_compute_share = Limit(
        0.5, "share", "A program that computes mostly in 64 bits does so on purpose."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when 64-bit work takes a good part, on a device but not most, of it."""
        if signals.device.is_host_only:
            yield from _on_the_cpu(signals)
            return
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


def _on_the_cpu(signals: Signals) -> Iterable[Finding]:
    """Yield a finding when operators on 64-bit numbers take a good part of the step."""
    form = in_32_bits(signals)
    if form is None or share_of_window(form.expected_ns, signals) < _LEAST_SHARE_ON_CPU:
        return
    now_ns = int(form.now_ns.sum())
    yield Finding(
        instance=f"{format_share(now_ns / signals.attribution.window_ns)} of each step",
        summary=(
            f"{per_step(now_ns, signals)} goes into operators on 64-bit numbers. In 32 bits, they"
            " move half of the bytes and compute twice as many numbers at once."
        ),
        saving=Saving(form.low_ns, form.expected_ns, form.high_ns, form.spans, "modeled"),
        evidence=(
            events_by_name(
                "Operators on 64-bit numbers",
                "Operator",
                signals.trace,
                form.rows,
                ((Column("own_ns", "Own time", "ns"), form.now_ns),),
            ),
            costliest("Longest of these operators", signals.worker, form.rows, form.now_ns),
        ),
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
