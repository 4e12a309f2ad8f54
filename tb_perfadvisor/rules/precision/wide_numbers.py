"""Numbers in more bits than needed, and conversions between types."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.hardware import Peaks
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.rules.amounts import count_per_step, per_step, share_of_each, share_of_window
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.device_work import costly_work
from tb_perfadvisor.rules.evidence.tables import own_times
from tb_perfadvisor.rules.examined_operators import calling_lines, observed_table
from tb_perfadvisor.rules.finding import Column, Finding, Saving, Table, costliest
from tb_perfadvisor.rules.savings import faster_device_work
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.core.causes import BUSY, COMPUTE, Cause
from tb_perfadvisor.signals.device.conversions import casts
from tb_perfadvisor.signals.work.layer_forms import (
    emulated_products,
    gains_by_bfloat16,
    in_32_bits,
    in_bfloat16,
    without_float16,
)
from tb_perfadvisor.signals.work.matrix_kernels import matrix_kernels
from tb_perfadvisor.signals.work.roofline import MATRIX_FAMILIES
from tb_perfadvisor.trace import EventKind, KernelFamily, Precision, Trace
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.names import named
from tb_perfadvisor.trace.tables import Int32
from tb_perfadvisor.units import format_share

_LEAST_SHARE_ON_CPU = 0.05
"""Comparing the results of two precisions is not worth it for less."""


class DoublePrecision(Rule):
    """Part of the work is in 64-bit numbers, in a program of narrower ones."""

    id = "double-precision"
    title = "Remove accidental 64-bit compute"
    needs = (Need.DEVICE_EVENTS, Need.KERNEL_PRECISION)
    needs_on_cpu = (Need.WORK, Need.HOST_EVENTS, Need.PYTORCH)
    is_preview = False

    minimum_share = Limit(0.01, "share", "A counter and a learning rate take less than this.")
    maximum_compute_share = Limit(
        0.5, "share", "A program that computes mostly in 64 bits does so on purpose."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        if signals.device.is_host_only:
            yield from self._on_the_cpu(signals)
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

    def _on_the_cpu(self, signals: Signals) -> Iterable[Finding]:
        form = in_32_bits(signals)
        if form is None or share_of_window(form.expected_ns, signals) < _LEAST_SHARE_ON_CPU:
            return
        now_ns = int(form.now_ns.sum())
        compute_ns = signals.attribution.total_ns(Cause.HOST_COMPUTE)
        if now_ns > self.maximum_compute_share * compute_ns:
            return
        yield Finding(
            instance=f"64-bit operators take {share_of_each(now_ns, signals)}",
            summary=(
                f"{per_step(now_ns, signals)} goes into operators on 64-bit numbers. In 32 bits,"
                " they move half of the bytes and compute twice as many numbers at once."
            ),
            saving=Saving(form.low_ns, form.expected_ns, form.high_ns, form.spans, "modeled"),
            evidence=own_times("Operators on 64-bit numbers", signals, form.rows, form.now_ns),
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


class CastOverhead(Rule):
    """The device spends a good part of its time converting data types."""

    id = "cast-overhead"
    title = "Convert between data types less often"
    needs = (Need.DEVICE_EVENTS, Need.KERNELS)
    is_preview = False

    minimum_busy_share = Limit(
        0.1, "share", "The casts of mixed precision take up to a tenth of the device's time."
    )
    minimum_share = Limit(0.02, "share", "A smaller gain does not justify the search.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        cast = casts(signals)
        rows = cast.rows
        now_ns = signals.trace.events.duration_ns[rows]
        then_ns = np.where(cast.is_pure, now_ns // 2, now_ns * 3 // 4)
        saving = faster_device_work(signals, rows, then_ns, basis="heuristic")
        exposed_ns, busy_ns = saving.claimed_ns, signals.attribution.total_ns(*BUSY)
        if self.is_minor(exposed_ns, signals) or exposed_ns < self.minimum_busy_share * busy_ns:
            return
        yield Finding(
            summary=(
                f"{per_step(exposed_ns, signals)} goes into converting data types"
                f" ({count_per_step(len(rows), 'kernel', signals)}),"
                f" {format_share(exposed_ns / busy_ns)} of the device's busy time."
            ),
            saving=saving,
            evidence=costly_work("casts", signals, rows, saving.claims),
            remedies=advise(
                "compile",
                "bfloat16-weights",
                "cast-once",
            ),
        )


_BFLOAT16 = regex(r"bf16|bfloat16", re.IGNORECASE)
_READS = "/Cast/ReadVariableOp:ReadVariableOp"


class EmulatedSixteenBits(Rule):
    """The program computes in 16 bits on hardware that has no units for it."""

    id = "emulated-sixteen-bits"
    title = "Compute in a format that the hardware has units for"
    needs = (Need.WORK,)
    is_preview = False

    minimum_share = Limit(0.05, "share", "A few layers in another format cost less than this.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        facts = signals.device_facts
        if signals.device.is_host_only:
            yield from _casts_on_cpu(signals)
            yield from self._products_on_cpu(signals)
        elif facts is not None and facts.peaks is not None and _lacks_bfloat16(facts.peaks):
            yield from self._on_gpu(signals, facts.name)

    def _on_gpu(self, signals: Signals, name: str) -> Iterable[Finding]:
        trace, rows = signals.trace, matrix_kernels(signals).rows
        rows = rows[named(trace, rows, _BFLOAT16)]
        now_ns = trace.events.duration_ns[rows]
        saving = faster_device_work(
            signals, rows, now_ns // 2, basis="heuristic", least_then_ns=now_ns // 4
        )
        if self.is_minor(saving.claimed_ns, signals):
            return
        yield Finding(
            summary=(
                f"{per_step(saving.claimed_ns, signals)} goes into products in bfloat16, which the"
                f" {name} has no units for."
            ),
            saving=saving,
            evidence=(costliest("Longest kernels in bfloat16", signals.worker, rows, now_ns),),
            remedies=advise("float16", "float16-or-32-bits"),
        )

    def _products_on_cpu(self, signals: Signals) -> Iterable[Finding]:
        rows, now_ns = emulated_products(signals)
        total_ns = int(now_ns.sum())
        if self.is_minor(total_ns, signals):
            return
        form = without_float16(signals)
        is_known = signals.trace.facts.machine.instruction_sets is not None
        is_most = 2 * total_ns > signals.attribution.window_ns
        yield Finding(
            instance=f"{share_of_each(total_ns, signals)} multiplies 16-bit numbers",
            summary=(
                f"{per_step(total_ns, signals)} goes into products of 16-bit numbers. Processors"
                " without instructions for them compute them many times slower than in other"
                " types; "
                + ("this one has none." if is_known else "this recording does not list its own.")
            ),
            saving=None
            if form is None
            else Saving(form.low_ns, form.expected_ns, form.high_ns, form.spans, "modeled"),
            evidence=(costliest("Longest products in 16 bits", signals.worker, rows, now_ns),),
            remedies=advise(
                *(("bfloat16-weights",) if gains_by_bfloat16(signals.trace) else ()),
                "compare-with-32-bits",
            ),
            severity=None if form is not None else "medium" if is_known or is_most else "low",
        )


def _lacks_bfloat16(peaks: Peaks) -> bool:
    """Whether a device is known to multiply float16 on matrix units, but not bfloat16."""
    return peaks.flop_per_s("bf16") is None and peaks.flop_per_s("fp16") is not None


def _casts_on_cpu(signals: Signals) -> Iterable[Finding]:
    layers = _layers_with_cast_weights(signals.trace)
    if not layers:
        return
    count = "one layer" if len(layers) == 1 else f"{len(layers)} layers"
    yield Finding(
        summary=(
            f"The policy of this Keras model casts the weights of {count} to 16 bits,"
            " but on the CPU, TensorFlow's own kernels convert each number back: a step often takes"
            " two to three times as long as in 32 bits."
        ),
        evidence=(
            Table(
                "Layers that cast their weights",
                (Column("layer", "Layer"),),
                tuple((layer,) for layer in layers),
            ),
        ),
        remedies=advise("float32", "onednn"),
        severity="medium",
    )


def _layers_with_cast_weights(trace: Trace) -> tuple[str, ...]:
    """Layers that read a variable and cast it; empty if oneDNN computes.

    Keras reads variables of layers through an automatic cast, which is an operator of its own only
    if the policy differs from the variable's type (keras/src/backend/common/variables.py).
    """
    names = trace.events.name[trace.rows(EventKind.OPERATOR)]
    operators = {trace.strings[name] for name in distinct(names).tolist()}
    if any(":_Mkl" in name for name in operators):
        return ()
    read = (name.removesuffix(_READS) for name in operators if name.endswith(_READS))
    cast = (name for name in read if f"{name}/Cast:Cast" in operators)
    # `sequential/dense/BiasAdd` and `sequential/dense/MatMul` are one layer.
    return tuple(sorted({name.rpartition("/")[0] for name in cast}))


class FullPrecisionOnCpu(Rule):
    """A PyTorch program on the CPU multiplies 32-bit numbers, and the CPU has bfloat16."""

    id = "full-precision-on-cpu"
    title = "Multiply in bfloat16, which this CPU does faster"
    needs = (Need.WORK, Need.HOST_EVENTS, Need.PYTORCH, Need.CPU_PROGRAM)
    is_preview = False

    minimum_share = Limit(
        0.05, "share", "Comparing the losses of two trainings is not worth it for less than 5 %."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        form = in_bfloat16(signals)
        if form is None or self.is_minor(form.expected_ns, signals):
            return
        now_ns = int(form.now_ns.sum())
        lines = calling_lines(signals, form.rows)
        yield Finding(
            instance=f"32-bit layers take {share_of_each(now_ns, signals)}",
            summary=(
                f"{per_step(now_ns, signals)} goes into layers that compute in 32 bits. This"
                " processor multiplies bfloat16 faster; casts cost part of that."
            ),
            saving=Saving(form.low_ns, form.expected_ns, form.high_ns, form.spans, "modeled"),
            evidence=(
                *own_times("32-bit layers", signals, form.rows, form.now_ns),
                *((observed_table(lines, None),) if lines else ()),
            ),
            remedies=advise("bfloat16", "bfloat16-weights", "bfloat16-if-possible", device="cpu"),
            severity="medium",
        )
