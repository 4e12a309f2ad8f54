"""16-bit and 8-bit matrix kernels that do not use tensor cores."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.matrix_products import matrix_products_by_size
from tb_perfadvisor.rules.finding import Finding, costliest
from tb_perfadvisor.rules.savings.faster_device_work import halfway_to_best
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.device.device_work import time_within
from tb_perfadvisor.signals.work.achievable_time import LATENCY_BOUND
from tb_perfadvisor.signals.work.matrix_kernels import (
    MatrixKernels,
    fills_device,
    matrix_kernels,
)
from tb_perfadvisor.signals.work.roofline import NUMBER_FORMATS, roofline
from tb_perfadvisor.trace.integer_groups import is_in
from tb_perfadvisor.units import format_share

_NARROW = tuple(NUMBER_FORMATS.index(form) for form in ("fp16", "bf16", "fp8", "int8"))


class TensorCoresIdle(Rule):
    """Matrix kernels in 16-bit or 8-bit numbers run without tensor cores.

    What it finds
    -------------
    Matrix multiplications and convolutions in 16-bit or 8-bit numbers whose kernels are known not
    to use matrix units (tensor cores, matrix cores), although the device has them for this data
    type.

    Why it matters
    --------------
    Without matrix units, 16-bit kernels are hardly faster than 32-bit ones. Libraries fall back to
    such kernels for sizes or layouts that the units do not support.

    How it is measured
    ------------------
    The kernel's name tells whether it uses matrix units: used, not used, or unknown. Only kernels
    that are known not to use them count, unless they assist a kernel that does. Products with only
    a few rows or columns are left out, because memory bandwidth limits them, and so are kernels
    without a block for each multiprocessor. High is the time above the achievable one for the
    shapes, expected is half of that, and low is 0. Where the profile allows it,
    replaying the steps refines the expected saving.

    When to ignore
    --------------
    When the shapes are small and cannot be changed.

    How to verify
    -------------
    Kernel names contain `tensorop`, `16816`, `xmma`, `nvjet` or `MI16x16`, and the table is empty.

    References:
    ----------
    NVIDIA, "Matrix multiplication background user's guide", requirements for tensor cores.
    """

    id = "tensor-cores-idle"
    title = "Run matrix kernels on the tensor cores"
    category = "precision"
    needs = (Need.DEVICE_EVENTS, Need.SHAPES, Need.PEAKS)
    refines = "slow-matmul"

    minimum_share = Limit(0.02, "share", "A smaller gain does not justify the search.")
    minimum_size = Limit(
        8, "count", "A smaller product does not fill a single tensor-core instruction."
    )
    maximum_achieved_share = Limit(
        0.35,
        "share",
        "Kernels that reach more are bound by memory, which tensor cores do not help.",
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when matrix kernels without matrix units take a good part of the step."""
        facts, rooflines, kernels = signals.device_facts, roofline(signals), matrix_kernels(signals)
        if facts is None or facts.peaks is None or not facts.peaks.tensor:
            return
        achieved = rooflines.achievable_ns[kernels.entry] / np.maximum(kernels.duration_ns, 1)
        is_idle = is_in(rooflines.number_format[kernels.entry], _NARROW) & (
            kernels.tensor_cores == 0
        )
        is_idle &= achieved < self.maximum_achieved_share
        is_idle &= rooflines.bound[kernels.entry] != LATENCY_BOUND
        is_idle &= fills_device(signals, kernels)
        sizes = rooflines.sizes_of(kernels.entry)[:, 1:]
        is_idle &= sizes.min(axis=1, initial=np.iinfo(np.int64).max) >= self.minimum_size
        is_idle &= ~_helps(signals, kernels)
        idle = kernels.select(is_idle)
        best_ns = np.rint(rooflines.achievable_ns[idle.entry]).astype(np.int64)
        saving = halfway_to_best(signals, idle.rows, best_ns)
        exposed_ns = saving.claimed_ns
        if self.is_minor(exposed_ns, signals):
            return
        share = best_ns.sum() / idle.duration_ns.sum()
        yield Finding(
            summary=(
                f"{per_step(exposed_ns, signals)} goes into 16-bit or 8-bit matrix kernels that do"
                f" not use tensor cores, at {format_share(share)} of the achievable rate."
            ),
            saving=saving,
            evidence=(
                matrix_products_by_size(
                    "16-bit and 8-bit matrix kernels without tensor cores", signals, idle
                ),
                costliest(
                    "Longest of these kernels",
                    signals.worker,
                    idle.rows,
                    time_within(signals, idle.rows, saving.claims),
                ),
            ),
            remedies=advise("channels-last", "library-benchmark", "pad-for-tensor-cores"),
        )


def _helps(signals: Signals, kernels: MatrixKernels) -> NDArray[np.bool_]:
    """Whether another kernel of the same operator uses matrix units, or may; shape (n,)."""
    operator = roofline(signals).operator[kernels.entry]
    helped = operator[(kernels.tensor_cores != 0) & (operator >= 0)]
    return is_in(operator, helped)
