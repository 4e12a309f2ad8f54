"""Activations computed again although there is memory to keep them."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.call_sites import work_by_call_site
from tb_perfadvisor.rules.finding import Finding, Remedy, costliest
from tb_perfadvisor.rules.savings.faster_device_work import faster_device_work
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.device.device_work import time_within
from tb_perfadvisor.signals.device.recomputation import recomputation
from tb_perfadvisor.units import format_bytes, format_share

_REMEDIES = (
    Remedy(
        text="Checkpoint fewer layers: as many as memory asks for.",
        snippet=(
            "for index, layer in enumerate(self.layers):\n"
            "    if index % 2:  # every second one, then fewer\n"
            "        x = checkpoint(layer, x, use_reentrant=False)\n"
            "    else:\n"
            "        x = layer(x)"
        ),
        framework="pytorch",
        reference="https://pytorch.org/docs/stable/checkpoint.html",
    ),
    Remedy(
        text="Or recompute only what is cheap, and keep the results of matrix products.",
        snippet=(
            "keep = [torch.ops.aten.mm.default, torch.ops.aten.addmm.default]\n"
            "contexts = functools.partial(create_selective_checkpoint_contexts, keep)\n"
            "x = checkpoint(layer, x, use_reentrant=False, context_fn=contexts)"
        ),
        framework="pytorch",
        reference="https://pytorch.org/docs/stable/checkpoint.html",
    ),
    Remedy(
        text="Let the checkpoints keep what matrix products give, and compute only the rest again; "
        "or checkpoint fewer layers.",
        snippet=(
            "policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable\n"
            "layer = jax.checkpoint(layer, policy=policy)"
        ),
        framework="jax",
        reference="https://docs.jax.dev/en/latest/gradient-checkpointing.html",
    ),
    Remedy(
        text="Recompute the gradients of fewer layers: as many as memory asks for.",
        snippet=(
            "for index, layer in enumerate(self.layers_):\n"
            "    call = tf.recompute_grad(layer) if index % 2 else layer\n"
            "    x = call(x)"
        ),
        framework="tensorflow",
        reference="https://www.tensorflow.org/api_docs/python/tf/recompute_grad",
    ),
)


class Recompute(Rule):
    """The backward pass computes activations again while device memory is free.

    What it finds
    -------------
    Forward operators of modules that run inside autograd nodes, as activation checkpointing
    makes them, and XLA operations that `jax.checkpoint` or XLA itself does again, on a device
    with a good part of its memory unused at the peak.

    Why it matters
    --------------
    Checkpointing pays with compute, up to a third of a step, for memory. Where memory is left
    over, it pays for nothing.

    How it is measured
    ------------------
    The time in which the device does nothing but run those operators' kernels again. High is all
    of it, expected half, after re-timing the steps where the profile allows that; low is nothing:
    how much memory the activations would take is not in the profile.

    When to ignore
    --------------
    When memory is free only in the steps that were profiled: other batches may be longer. Or
    when the free memory is meant for a larger batch.

    How to verify
    -------------
    The step gets shorter, and the peak of memory stays below nine tenths of the device's.

    References:
    ----------
    Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016); PyTorch documentation,
    `torch.utils.checkpoint`; JAX documentation, "Gradient checkpointing".
    """

    id = "recompute"
    title = "Keep activations where memory allows it"
    category = "compute"
    needs = (
        Need.DEVICE_EVENTS,
        Need.KERNELS,
        Need.ORIGINS,
        Need.MEMORY,
        Need.MEMORY_CAPACITY,
    )

    minimum_share = Limit(
        0.04, "share", "Of a twenty-fifth of the step, half would be saved: what steps vary by."
    )
    maximum_memory = Limit(
        0.6, "share", "With less than two fifths of the memory free, few activations would fit."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when much is recomputed and much memory is free."""
        memory, again = signals.memory, recomputation(signals)
        if memory is None or not memory.capacity_bytes or not len(again.rows):
            return
        # Reserved memory that is not allocated is there for activations.
        peak = memory.peak_allocated_bytes or memory.peak_reserved_bytes
        if peak is None or peak > self.maximum_memory * memory.capacity_bytes:
            return
        half = signals.trace.events.duration_ns[again.rows] // 2
        saving = faster_device_work(signals, again.rows, half, basis="heuristic")
        exposed_ns = saving.claimed_ns
        if self.is_minor(exposed_ns, signals):
            return
        cost_ns = time_within(signals, again.rows, saving.claims)
        yield Finding(
            summary=(
                f"{per_step(exposed_ns, signals)} goes into computing activations again, while"
                f" {format_bytes(memory.capacity_bytes - peak)} of device memory"
                f" ({format_share(1 - peak / memory.capacity_bytes)}) are never used."
            ),
            saving=saving,
            evidence=(
                work_by_call_site(
                    "Recomputed operators", signals, again.rows, cost_ns, again.operators
                ),
                costliest("The longest of them", signals.worker, again.rows, cost_ns),
            ),
            remedies=_REMEDIES,
        )
