"""Biases of convolutions that feed a batch normalization."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.call_sites import costly_work
from tb_perfadvisor.rules.finding import Finding
from tb_perfadvisor.rules.savings.faster_device_work import faster_device_work
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.device.normalized_convolutions import normalized_convolutions
from tb_perfadvisor.trace.integer_groups import distinct


class BiasBeforeBatchNorm(Rule):
    """Convolutions add biases that the batch normalization after them cancels.

    What it finds
    -------------
    Convolutions with a bias whose output goes straight into a batch normalization: the kernels that
    add the bias, and those that sum its gradient.

    Why it matters
    --------------
    Batch normalization subtracts the mean of each channel, so a constant added before it has no
    effect. Adding the bias reads and writes whole activations, and its gradient reads them once
    more.

    How it is measured
    ------------------
    The time in which the device does nothing else. Without the bias, all of it is gone, so low,
    expected and high agree. Where the profile allows it, replaying the steps refines the expected
    saving.

    When to ignore
    --------------
    When the normalization does not use the statistics of the batch, as in evaluation: fold it into
    the convolution instead, including the bias.

    How to verify
    -------------
    `aten::convolution` contains no `aten::add_` any more, and the loss curve is unchanged.

    References:
    ----------
    Ioffe and Szegedy, "Batch Normalization" (2015), section 3.2; PyTorch tutorial, "Performance
    Tuning Guide", section on biases before batch normalization.
    """

    id = "bias-before-batch-norm"
    title = "Omit biases before batch norm"
    category = "compute"
    needs = (Need.DEVICE_EVENTS, Need.KERNELS, Need.LAUNCH_LINKS, Need.SHAPES, Need.PYTORCH)

    minimum_share = Limit(0.01, "share", "The change is easy, but a smaller gain is not worth it.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when such biases cost a good part of the step."""
        biased = normalized_convolutions(signals)
        gone = np.zeros(len(biased.rows), dtype=np.int64)
        saving = faster_device_work(signals, biased.rows, gone, basis="measured", most_then_ns=gone)
        exposed_ns = saving.claimed_ns
        if self.is_minor(exposed_ns, signals):
            return
        count = len(distinct(biased.convolutions))
        yield Finding(
            instance=count_per_step(count, "convolution", signals),
            summary=(
                f"{per_step(exposed_ns, signals)} goes into biases that batch normalization cancels"
                f" ({count_per_step(count, 'convolution', signals)})."
            ),
            saving=saving,
            evidence=costly_work(
                "bias kernels", signals, biased.rows, saving.claims, biased.convolutions
            ),
            remedies=advise("no-bias"),
        )
