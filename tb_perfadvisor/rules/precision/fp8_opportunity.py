"""16-bit matrix products on a device that multiplies fp8 numbers at twice the rate."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.advice import advise
from tb_perfadvisor.hardware import Peaks
from tb_perfadvisor.rules.amounts import share_of_each, time_of_each
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.matrix_products import matrix_products_by_size
from tb_perfadvisor.rules.finding import Finding, costliest
from tb_perfadvisor.rules.savings.faster_device_work import faster_device_work
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.core.steps.server_annotations import StepKind
from tb_perfadvisor.signals.serving.server_steps import server_steps
from tb_perfadvisor.signals.work.achievable_time import COMPUTE_BOUND, MEMORY_BOUND
from tb_perfadvisor.signals.work.matrix_kernels import MatrixKernels, matrix_kernels
from tb_perfadvisor.signals.work.roofline import NUMBER_FORMATS, roofline
from tb_perfadvisor.signals.workload.workload import Part, workload
from tb_perfadvisor.trace import KernelFamily, Precision
from tb_perfadvisor.trace.integer_groups import is_in, unique_inverse
from tb_perfadvisor.trace.tables import Int64

_NARROW = tuple(NUMBER_FORMATS.index(form) for form in ("fp16", "bf16"))
_CAST_BYTES = 3
"""A cast reads 2 bytes of a number and writes 1."""
_QUANTIZED = re.compile(r"(?i)fp4|int4|e2m1|marlin|machete|gptq|awq|w[48]a16")
"""Kernels that multiply in 16 bits, but whose weights are already stored in fewer."""


class Fp8Opportunity(Rule):
    """Large 16-bit matrix products take most of the step, and the device is faster in fp8.

    What it finds
    -------------
    16-bit matrix products on a device with fp8 matrix units: Hopper, Blackwell, Ada, CDNA 3 and
    later, TPU v7. In training, they are bound by arithmetic, and already run near their 16-bit
    roofline. In inference, those bound by memory count, too, because weights take half the bytes.

    Why it matters
    --------------
    Such products cannot get much faster in 16 bits. In fp8, matrix units multiply at twice the
    rate, and operands take half the memory.

    How it is measured
    ------------------
    In the best case, each product reaches the same share of its fp8 roofline as of its 16-bit
    roofline now, and the casts of its operands take the time of their bytes. If the shapes are
    unknown, as in GPU graphs, products of inference take half of their time in the best case.
    Expected is half of that saving, which agrees with published training runs: about a quarter more
    tokens per second where products take two thirds of the step. Low is 0, because small or
    sensitive layers may have to stay in 16 bits. Batched products, which mostly belong to
    attention, are left out, and so are products whose weights are quantized already. The severity
    is low, whatever it saves: nothing is wrong with a program that computes in 16 bits.

    When to ignore
    --------------
    When the accuracy does not allow it. Fp8 has 3 bits of fraction: compare loss curves, or the
    quality of the output, before you rely on it. It also costs compile time and an extra library.

    How to verify
    -------------
    The products run in kernels with `e4m3`, `fp8` or `F8` in their names, the breakdown shows 8-bit
    compute instead of 16-bit compute, and the loss or the output quality has not changed.

    References:
    ----------
    Micikevicius et al., "FP8 Formats for Deep Learning" (2022); PyTorch documentation, torchao,
    "Quantized training"; NVIDIA, "Transformer Engine user guide".
    """

    id = "fp8-opportunity"
    title = "Multiply large matrices in fp8"
    category = "precision"
    needs = (Need.DEVICE_EVENTS, Need.KERNEL_PRECISION, Need.PEAKS)
    is_preview = False

    minimum_share = Limit(
        0.25, "share", "Half of the time of a quarter of the step is 12 % at best, 6 % expected."
    )
    minimum_ratio = Limit(
        1.5, "ratio", "Below 1.5 times the 16-bit rate, casts cost most of the gain."
    )
    minimum_achieved_share = Limit(
        0.4, "share", "Further below its roofline, something else limits a product."
    )
    minimum_duration_ns = Limit(
        10_000, "ns", "Shorter kernels are dominated by their start and end."
    )
    maximum_fp8_share = Limit(
        0.1, "share", "A program with more fp8 products has chosen what to leave in 16 bits."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when fp8 could shorten products that take most of the step."""
        facts, products = signals.device_facts, matrix_kernels(signals)
        peaks = facts.peaks if facts else None
        fp8, bf16 = (peaks.flop_per_s(form) if peaks else None for form in ("fp8", "bf16"))
        if facts is None or peaks is None or not fp8 or not bf16 or fp8 < self.minimum_ratio * bf16:
            return
        products = products.select(products.family == KernelFamily.MATMUL)
        in_fp8_ns = products.duration_ns[products.precision == Precision.BITS_8].sum()
        if in_fp8_ns > self.maximum_fp8_share * products.duration_ns.sum():
            return
        program = workload(signals)
        is_inference = program.has(Part.FORWARD_ONLY) or program.has(Part.SERVER)
        large = products.select(self._is_large(signals, products, is_inference=is_inference))
        best_ns = _in_fp8_ns(signals, large, peaks, is_inference=is_inference)
        saving = faster_device_work(
            signals,
            large.rows,
            (best_ns + large.duration_ns) // 2,
            basis="heuristic",
            least_then_ns=best_ns,
        )
        if self.is_minor(saving.claimed_ns, signals):
            return
        yield Finding(
            instance=f"they take {share_of_each(saving.claimed_ns, signals)}",
            summary=(
                f"16-bit matrix products take {time_of_each(saving.claimed_ns, signals)}."
                f" {_gain(signals, facts.name, fp8, fp8 / bf16)} Fp8 costs accuracy, which a"
                " profile does not show."
            ),
            saving=saving,
            severity="low",
            evidence=(
                matrix_products_by_size("Large 16-bit products", signals, large),
                costliest("Longest of them", signals.worker, large.rows, large.duration_ns),
            ),
            remedies=advise("fp8"),
        )

    def _is_large(
        self, signals: Signals, products: MatrixKernels, *, is_inference: bool
    ) -> NDArray[np.bool_]:
        """Whether fp8 would shorten each product; shape (n,)."""
        rooflines, entry = roofline(signals), products.entry
        bounds = (COMPUTE_BOUND, MEMORY_BOUND) if is_inference else (COMPUTE_BOUND,)
        achieved = rooflines.achievable_ns[entry] / np.maximum(products.duration_ns, 1)
        is_large = is_in(rooflines.number_format[entry], _NARROW)
        is_large &= is_in(rooflines.bound[entry], bounds)
        is_large &= rooflines.sizes_of(entry)[:, 0] == 1
        is_large &= achieved >= self.minimum_achieved_share
        if is_inference:
            is_large |= np.isnan(achieved) & (products.precision == Precision.BITS_16)
        is_large &= products.duration_ns >= self.minimum_duration_ns
        return is_large & ~_is_quantized(signals, products)


def _gain(signals: Signals, device: str, fp8_flop_per_s: float, ratio: float) -> str:
    steps = server_steps(signals)
    if steps is not None and steps.is_kind(StepKind.DECODE).all():
        return (
            "Steps that only generate tokens read all weights to compute little with them, and in"
            " fp8 weights are half as large."
        )
    return (
        f"{device or 'The device'} multiplies {ratio:.1f} times as fast in fp8"
        f" ({fp8_flop_per_s / 1e12:,.0f} TFLOP/s)."
    )


def _is_quantized(signals: Signals, products: MatrixKernels) -> NDArray[np.bool_]:
    names, of_product = unique_inverse(signals.trace.events.name[products.rows])
    texts = signals.trace.texts(names)
    return np.array([bool(_QUANTIZED.search(text)) for text in texts], dtype=bool)[of_product]


def _in_fp8_ns(
    signals: Signals, products: MatrixKernels, peaks: Peaks, *, is_inference: bool
) -> Int64:
    """Times at the same share of the fp8 roofline, with the casts of the operands; shape (n,)."""
    rooflines, entry = roofline(signals), products.entry
    ratio = rooflines.achievable_in("fp8", peaks)[entry] / rooflines.achievable_ns[entry]
    _, m, n, k = rooflines.sizes_of(entry).T
    # Inference casts activations; weights are cast once. In training, each operand of a layer takes
    # part in two of three products.
    numbers = m * k if is_inference else (m * k + k * n) / 2
    bandwidth = (peaks.memory_bandwidth_bytes_per_s or np.inf) * peaks.achievable_bandwidth
    cast_ns = numbers * (_CAST_BYTES / bandwidth * 1e9)
    in_fp8_ns = products.duration_ns * np.where(np.isnan(ratio), 0.5, ratio) + cast_ns
    best_ns: Int64 = np.rint(np.minimum(in_fp8_ns, products.duration_ns)).astype(np.int64)
    return best_ns
