"""32-bit compute on a device that is faster in 16 bits."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.hardware import Peaks
from tb_perfadvisor.rules.amounts import per_step, share_of_window
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.matrix_products import wide_kernels
from tb_perfadvisor.rules.evidence.tables import executions_by_operation
from tb_perfadvisor.rules.finding import Finding, costliest
from tb_perfadvisor.rules.savings.faster_device_work import faster_device_work
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.signals.device.device_work import exclusive_time
from tb_perfadvisor.signals.program.wide_arrays import wide_arrays
from tb_perfadvisor.signals.tpu.product_time import products_in_passes
from tb_perfadvisor.signals.tpu.xla_operations import has_tiled_layouts
from tb_perfadvisor.signals.work.wide_work import (
    may_have_matrix_units,
    wide_rows,
    work_for_16_bits,
)
from tb_perfadvisor.trace.intervals import total_ns
from tb_perfadvisor.trace.tables import Int64
from tb_perfadvisor.units import format_share

_BFLOAT16 = ("bfloat16", "bfloat16-weights", "bfloat16-if-possible")
_FLOAT16 = ("float16",)


class FullPrecisionCompute(Rule):
    """The device computes in 32 bits although it is several times faster in 16.

    What it finds
    -------------
    Time of matrix multiplications, convolutions and attention in 32-bit numbers on a device whose
    dense 16-bit peak is well above its 32-bit peak, together with the elementwise and normalization
    kernels whose memory traffic would halve.

    Why it matters
    --------------
    Tensor cores and matrix units work in 16 bits at several times the rate of 32 bits, and a 16-bit
    tensor takes half the memory and half the bandwidth.

    How it is measured
    ------------------
    The time in which nothing else runs on the device. In the best case, each matrix kernel takes
    the achievable time of its shapes in 16 bits: its FLOPs at the achievable rate, and half of its
    bytes at memory bandwidth. A matrix product is expected to reach the same share of that as now.
    Convolutions and attention may use another algorithm in 16 bits, so expected is halfway between
    the same share and half of the time. Low is half of expected. Without recorded shapes, the best
    case is the ratio of the peaks, and half of the time is expected. Other kernels
    save at most half of their time; a quarter is expected, and low is 0. Optimizer, softmax and
    random-number kernels stay in 32 bits.

    On a GPU whose peaks are unknown, a rule of thumb replaces all of this: a quarter of the time of
    32-bit matrix kernels is expected, half of it is high, and low is 0. If the profile only has the
    sum of 32-bit compute, that counts. GPUs known to be older than Volta are left out, since most
    of them are no faster in 16 bits.

    On a TPU, of products only those with `precision=high` or `highest` count, which multiply 32-bit
    numbers in three and six passes. By default, the matrix unit rounds them to bfloat16 and
    multiplies once.
    High is the time of the additional passes, unless the memory is the limit. Expected is the same
    for fusions that only multiply. If a fusion does other work, too, expected is the time that the
    additional passes take by the model of shapes. Low is half of expected.

    The second finding on a TPU is about operations that take at most one and a half times what the
    bytes of their arrays need at the memory's bandwidth. If the embedded program shows that these
    come from 16-bit arrays alone, it widens them on purpose, as for a softmax, and they don't
    count. Arrays that one operation writes and another reads are activations and gradients.
    Expected is half of what they save with half of their bytes; low is 0. High assumes that
    arguments and results have 16 bits, too, and that arrays stay in the memory on the chip if they
    fit into it then.

    Kernels that use tensor cores, or may use them, are compared with the TF32 peak. Where the
    profile allows it, the steps are replayed with the expected time of each kernel, since a faster
    device does not help if the host cannot keep up. If recording visibly slowed the host by a tenth
    of the step or more, expected is halfway between the replayed saving and the saving if the host
    were fast enough.

    When to ignore
    --------------
    When the computation needs 32 bits: some solvers, losses and layers. Programs on
    the CPU are left to full-precision-on-cpu.

    How to verify
    -------------
    The 16-bit share of compute time rises to 0.8 or more, kernel names change to 16-bit ones, and
    the loss curve is unchanged.

    References:
    ----------
    NVIDIA, "Mixed Precision Training" (Micikevicius et al., 2018); PyTorch documentation,
    "Automatic Mixed Precision"; TensorFlow guide, "Mixed precision".
    """

    id = "full-precision-compute"
    title = "Compute in 16 bits"
    category = "precision"
    reads_sums = True
    needs = (Need.DEVICE_EVENTS, Need.KERNEL_PRECISION)
    is_preview = False

    minimum_share = Limit(
        0.05, "share", "With less 32-bit matrix work, mixed precision is already in use."
    )
    minimum_ratio = Limit(1.5, "ratio", "Below 1.5 times the rate, casts cost most of the gain.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when 32-bit matrix kernels take a good part of the step."""
        if has_tiled_layouts(signals):
            yield from self._on_tpu(signals)
            yield from self._wide_arrays(signals)
            return
        work = work_for_16_bits(signals, self.minimum_ratio)
        if work is None:
            yield from self._on_unknown_device(signals)
            return
        products = work.products
        # Cheap check first: exclusive time cannot exceed the total duration.
        if self.is_minor(int(products.duration_ns.sum()), signals):
            return
        exposed_ns = total_ns(exclusive_time(signals, products.rows))
        if self.is_minor(exposed_ns, signals):
            return
        saving = faster_device_work(
            signals,
            work.rows,
            work.expected_ns,
            basis="modeled",
            least_then_ns=work.best_ns,
            most_then_ns=work.worst_ns,
        )
        whole = "each step" if len(signals.steps) else "the profile"
        exposed_share = share_of_window(exposed_ns, signals)
        total_32_ns = total_ns(signals.attribution.intervals[Cause.COMPUTE_32])
        yield Finding(
            instance=f"{format_share(exposed_share)} of {whole} multiplies 32-bit numbers",
            summary=(
                f"{per_step(total_32_ns, signals)} is 32-bit compute; 32-bit matrix kernels take"
                f" {format_share(work.share_of_kernels)} of kernel time, and"
                f" {work.device or 'the device'} reaches {work.flop_per_s / 1e12:.0f} TFLOP/s in 16"
                " bits."
            ),
            saving=saving,
            evidence=wide_kernels(signals, products, work.rows),
            remedies=advise(*_changes(work.peaks)),
        )

    def _on_tpu(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when the matrix unit multiplies 32-bit numbers in several passes."""
        rows, passes, best_ns, then_ns, worst_ns = products_in_passes(signals)
        saving = faster_device_work(
            signals, rows, then_ns, basis="modeled", least_then_ns=best_ns, most_then_ns=worst_ns
        )
        if self.is_minor(saving.claimed_ns, signals):
            return
        yield Finding(
            title="Multiply 32-bit numbers in one pass",
            summary=(
                f"{per_step(saving.claimed_ns, signals)} goes into products of 32-bit numbers with"
                f" a precision that takes {_listed(passes)} passes of the matrix unit. By default,"
                " a TPU multiplies them in one pass, rounded to bfloat16."
            ),
            saving=saving,
            evidence=executions_by_operation(
                signals, rows, "Products in several passes", "Longest products in several passes"
            ),
            remedies=advise("one-pass-products"),
        )

    def _wide_arrays(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when operations of a TPU wait for the bytes of 32-bit arrays."""
        rows, half_ns, best_ns = wide_arrays(signals)
        now_ns = signals.trace.events.duration_ns[rows]
        saving = faster_device_work(
            signals, rows, (now_ns + half_ns) // 2, basis="modeled", least_then_ns=best_ns
        )
        if self.is_minor(saving.expected_ns, signals):
            return
        yield Finding(
            title="Keep activations in 16 bits",
            summary=(
                f"{per_step(saving.claimed_ns, signals)} goes into operations that wait for the"
                " memory to read and write 32-bit arrays. In 16 bits, these have half of the bytes."
            ),
            saving=saving,
            evidence=executions_by_operation(
                signals,
                rows,
                "Operations that wait for 32-bit arrays",
                "Longest waits for 32-bit arrays",
            ),
            remedies=advise(*_BFLOAT16),
        )

    def _on_unknown_device(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding from a rule of thumb, if the device may be faster in 16 bits."""
        facts = signals.device_facts
        if facts is None or not may_have_matrix_units(facts):
            return
        rows = wide_rows(signals)
        now_ns = signals.trace.events.duration_ns[rows]
        saving = faster_device_work(
            signals, rows, now_ns * 3 // 4, basis="heuristic", least_then_ns=now_ns // 2
        )
        if self.is_minor(saving.claimed_ns, signals):
            return
        work = "matrix work" if signals.trace.totals is None else "compute"
        yield Finding(
            summary=(
                f"{per_step(saving.claimed_ns, signals)} is 32-bit {work} on a GPU whose rates are"
                " unknown. GPUs since Volta multiply 16-bit numbers several times faster, so the"
                " saving is a rule of thumb: a quarter of that time."
            ),
            saving=saving,
            evidence=(costliest("Longest 32-bit kernels", signals.worker, rows, now_ns),),
            remedies=advise(*(_FLOAT16 if _BEFORE_BFLOAT16.search(facts.name) else _BFLOAT16)),
        )


def _listed(passes: Int64) -> str:
    """The numbers of passes: `3 or 6`."""
    return " or ".join(str(number) for number in np.unique(passes).tolist())


# Where nothing else is known, the name may tell the generation: `NVIDIA GPU (Volta or newer)`.
_BEFORE_BFLOAT16 = re.compile("Volta|Turing")


def _changes(peaks: Peaks) -> tuple[str, ...]:
    """Changes that this device supports."""
    casts = _BFLOAT16 if peaks.flop_per_s("bf16") is not None else _FLOAT16
    narrow, wide = peaks.flop_per_s("tf32"), peaks.flop_per_s("fp32", tensor=False)
    has_tf32 = narrow is not None and wide is not None and narrow > wide
    return (*casts, "tf32") if has_tf32 else casts
