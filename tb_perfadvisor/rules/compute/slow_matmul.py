"""Matrix kernels far below the roofline of their shapes."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.matrix_products import matrix_products_by_size
from tb_perfadvisor.rules.finding import Finding, costliest
from tb_perfadvisor.rules.savings.faster_device_work import halfway_to_best
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.device.device_work import time_within
from tb_perfadvisor.signals.tpu.xla_operations import has_tiled_layouts
from tb_perfadvisor.signals.work.achievable_time import LATENCY_BOUND
from tb_perfadvisor.signals.work.matrix_kernels import fills_device, matrix_kernels
from tb_perfadvisor.signals.work.roofline import roofline
from tb_perfadvisor.trace import KernelFamily
from tb_perfadvisor.units import format_share


class SlowMatmul(Rule):
    """Matrix kernels take several times as long as their shapes need on this device.

    What it finds
    -------------
    Matrix multiplications and convolutions, by shape, that reach only a small part of what the
    device achieves for their FLOPs and bytes.

    Why it matters
    --------------
    Libraries pick kernels by heuristics. For odd shapes, the chosen kernel can be several times
    slower than the device allows.

    How it is measured
    ------------------
    The achievable time of a product follows from its shape: 4 microseconds to start; its FLOPs at
    the achievable rate of its data type, in whole waves of tiles, while it reads its operands at
    the achievable bandwidth; and writing its result. That of a convolution is its FLOPs at that
    rate, or its minimum bytes at that bandwidth, whichever is longer. Kernels count if they reach
    less of it than the limit, run long enough not to be dominated by latency, and have a block for
    each multiprocessor. High is the time above the achievable one. Expected is half of that,
    because padding, tiles and layouts take their share. Low is 0. Where the profile allows it,
    replaying the steps refines the expected saving.

    When to ignore
    --------------
    When the shapes cannot be changed and autotuning has been tried. TPUs are left out: XLA compiles
    each product itself, and fuses it with other work.

    How to verify
    -------------
    The kernels for the shapes in the table have other names and reach a larger share of the
    achievable rate.

    References:
    ----------
    Williams, Waterman, Patterson, "Roofline: an insightful visual performance model" (2009);
    NVIDIA, "Matrix multiplication background user's guide".
    """

    id = "slow-matmul"
    title = "Find faster kernels for slow matrix products"
    category = "compute"
    needs = (Need.DEVICE_EVENTS, Need.SHAPES, Need.PEAKS)
    is_preview = False

    minimum_share = Limit(0.03, "share", "A smaller gain does not justify a search.")
    maximum_achieved_share = Limit(
        0.38,
        "share",
        "NVIDIA's own predictor expects more than this of every product that fills the device.",
    )
    minimum_duration_ns = Limit(
        20_000, "ns", "Shorter kernels are dominated by their start and end."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when slow matrix kernels take a good part of the step."""
        # A TPU has no library of kernels to choose from: XLA writes each product itself, and fuses
        # it with other work.
        if has_tiled_layouts(signals):
            return
        rooflines, kernels = roofline(signals), matrix_kernels(signals)
        achievable_ns = rooflines.achievable_ns[kernels.entry]
        achieved = achievable_ns / np.maximum(kernels.duration_ns, 1)
        is_slow = achieved < self.maximum_achieved_share  # False where it is unknown
        is_slow &= kernels.family != KernelFamily.ATTENTION
        is_slow &= kernels.duration_ns >= self.minimum_duration_ns
        is_slow &= rooflines.bound[kernels.entry] != LATENCY_BOUND
        is_slow &= fills_device(signals, kernels)
        slow = kernels.select(is_slow)
        best_ns = np.rint(achievable_ns[is_slow]).astype(np.int64)
        saving = halfway_to_best(signals, slow.rows, best_ns)
        exposed_ns = saving.claimed_ns
        if self.is_minor(exposed_ns, signals):
            return
        cost_ns = time_within(signals, slow.rows, saving.claims)
        mean = best_ns.sum() / slow.duration_ns.sum()
        yield Finding(
            summary=(
                f"{per_step(exposed_ns, signals)} goes into matrix kernels that reach"
                f" {format_share(mean)} of the achievable rate for their shapes."
            ),
            saving=saving,
            evidence=(
                matrix_products_by_size("Slow matrix kernels by shape", signals, slow),
                costliest("Longest slow matrix kernels", signals.worker, slow.rows, cost_ns),
            ),
            remedies=advise(
                "autotune", "library-benchmark", "merged-products", "xla-compiled-step"
            ),
        )
