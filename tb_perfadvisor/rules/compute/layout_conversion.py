"""Tensors that are converted from one memory layout to another."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.call_sites import costly_work
from tb_perfadvisor.rules.finding import Finding
from tb_perfadvisor.rules.savings.faster_device_work import faster_device_work
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.core.causes import BUSY
from tb_perfadvisor.signals.device.layout_conversions import layout_conversions
from tb_perfadvisor.units import format_share


class LayoutConversion(Rule):
    """The device rearranges tensors for operators that need another memory layout.

    What it finds
    -------------
    Kernels that only change the order of a tensor's dimensions: conversions between NCHW and NHWC
    by cuDNN and MIOpen around convolutions, operands that a convolution copies into its own layout,
    and transposes and layout copies in XLA programs.

    Why it matters
    --------------
    They read and write whole activations and compute nothing. Tensor cores work on channels-last
    data. A model in channels-first layout pays before and after every convolution, forward and
    backward.

    How it is measured
    ------------------
    The time in which nothing else runs on the device. High is all of it. Low is half,
    because operators that support only one layout still need a conversion on either side. Which
    ones do is unknown, so the middle of both is expected; where the profile allows it, the steps
    are replayed with it.

    When to ignore
    --------------
    When convolutions are a small part of the model: a transpose that the algorithm needs stays.

    How to verify
    -------------
    The conversion kernels are gone from the kernel list, and the names of the convolution kernels
    contain `nhwc`.

    References:
    ----------
    PyTorch tutorial, "Channels last memory format in PyTorch"; NVIDIA, "Convolutional layers
    user's guide", section on tensor layouts in memory.
    """

    id = "layout-conversion"
    title = "Keep tensors in one memory layout"
    category = "compute"
    needs = (Need.DEVICE_EVENTS, Need.KERNELS)
    is_preview = False

    minimum_busy_share = Limit(
        0.05,
        "share",
        "The first and last layers may convert, which takes up to this much device time.",
    )
    minimum_share = Limit(0.01, "share", "A smaller gain does not justify changing the layout.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when conversions take a good part of the device's time."""
        rows = layout_conversions(signals)
        worst_ns = signals.trace.events.duration_ns[rows] // 2
        saving = faster_device_work(
            signals, rows, worst_ns // 2, basis="modeled", most_then_ns=worst_ns
        )
        exposed_ns, busy_ns = saving.claimed_ns, signals.attribution.total_ns(*BUSY)
        if self.is_minor(exposed_ns, signals) or exposed_ns < self.minimum_busy_share * busy_ns:
            return
        yield Finding(
            summary=(
                f"{per_step(exposed_ns, signals)} goes into converting tensor layouts"
                f" ({count_per_step(len(rows), 'conversion', signals)}),"
                f" {format_share(exposed_ns / busy_ns)} of the device's busy time."
            ),
            saving=saving,
            evidence=costly_work("conversions", signals, rows, saving.claims),
            remedies=advise("channels-last", "channels-last-miopen"),
        )
