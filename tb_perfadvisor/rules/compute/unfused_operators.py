"""Memory-bound operators that run one by one where a compiler would fuse them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.fused_kernels import fused_kernels
from tb_perfadvisor.rules.finding import Finding, costliest
from tb_perfadvisor.rules.savings.faster_device_work import faster_device_work
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.device.device_work import time_within
from tb_perfadvisor.signals.work.fusible_work import fusible_work
from tb_perfadvisor.trace.tables import Float64, Int64
from tb_perfadvisor.units import format_share


class UnfusedOperators(Rule):
    """Memory-bound operators write tensors only for the next operators to read them.

    What it finds
    -------------
    Activations, casts, copies, concatenations, norms, rotary embeddings, gates, masks, residuals
    and reductions that PyTorch runs one by one between matrix products, each in a kernel of its
    own. Optimizers, gradient sums and the parts of attention do not count.

    Why it matters
    --------------
    Such a kernel takes as long as its bytes take through memory. Fused, these operators read their
    inputs once and write once what others need, whatever they compute in between.

    How it is measured
    ------------------
    From the shapes of the operators' inputs. An operator is fused with those whose results it
    reads, until a matrix product reads a result. A profile does not say which tensor an operator
    reads, so the rule takes the latest of its size that nothing has read. What a product, a
    residual connection or the backward pass reads later is written once.

    Of the bytes that remain, there are two counts. In one, operators of a kernel share further
    inputs of the same size; in the other, each is another tensor. High takes the first, low the
    second, and expected the middle. High moves them as fast as this device moves large copies,
    expected as fast as the better kernels of this program, low as fast as now, and none more than
    twice as fast as now. Where shapes are missing, times of kernels stand for their bytes, and each
    product ends a fused kernel. Where the profile allows it, replaying the steps refines the
    expected saving: a device that waits for the host saves nothing. Saved launches are not counted.

    When to ignore
    --------------
    When shapes change in every step, so that compiling takes longer than it saves.

    How to verify
    -------------
    One kernel replaces the operators of a row in the table; its name is `triton_…` if it was
    compiled.

    References:
    ----------
    PyTorch tutorial, "Performance Tuning Guide", section on fusing operations; Horace He, "Making
    Deep Learning Go Brrrr From First Principles" (2022); Ansel et al., "PyTorch 2" (2024).
    """

    id = "unfused-operators"
    title = "Fuse memory-bound operators"
    category = "compute"
    needs = (Need.DEVICE_EVENTS, Need.KERNELS, Need.PYTORCH)
    is_preview = False

    minimum_share = Limit(
        0.02, "share", "Every model has some such operators, and compiling takes some effort."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when fusing operators would save a good part of the step."""
        work = fusible_work(signals)
        now_ns = signals.trace.events.duration_ns[work.rows]

        def then_ns(share: Float64) -> Int64:
            return np.ceil(now_ns * share[work.kernel]).astype(np.int64)

        saving = faster_device_work(
            signals,
            work.rows,
            then_ns(work.expected_share),
            basis="modeled",
            least_then_ns=then_ns(work.least_share),
            most_then_ns=then_ns(work.most_share),
        )
        if self.is_minor(saving.expected_ns, signals):
            return
        exposed_ns, count = saving.claimed_ns, len(work.operators)
        cost_ns = time_within(signals, work.rows, saving.claims)
        yield Finding(
            summary=(
                f"{per_step(exposed_ns, signals)} goes into memory-bound operators that hand their"
                f" results to one another through memory. Fused into"
                f" {count_per_step(count, 'kernel', signals).removesuffix(' in all')} of"
                f" {work.operators.mean():.1f} operators each, they would take"
                f" {format_share(1 - saving.expected_ns / max(exposed_ns, 1))} of this time."
            ),
            saving=saving,
            evidence=(
                fused_kernels(signals, work, cost_ns, then_ns(work.expected_share)),
                costliest("Longest of these kernels", signals.worker, work.rows, cost_ns),
            ),
            remedies=advise("compile", "wider-compilation", "fused-operators"),
        )
