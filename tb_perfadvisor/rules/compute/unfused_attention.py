"""Attention that is computed operator by operator."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.call_sites import costly_work
from tb_perfadvisor.rules.finding import Column, Finding, Table, costliest
from tb_perfadvisor.rules.savings.faster_device_work import faster_device_work
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.device.attention_by_order import attention_by_order
from tb_perfadvisor.signals.device.device_work import time_within
from tb_perfadvisor.signals.device.unfused_attention import (
    AttentionLayers,
    fused_attention_ns,
    unfused_attention,
)
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.trace.tables import Int64


class UnfusedAttention(Rule):
    """Attention writes its scores to memory, where a fused kernel would keep them on chip.

    What it finds
    -------------
    A batched matrix product, a softmax of its result, and a batched product that uses it: attention
    in separate operators, with scaling, mask and dropout in between, forward and backward.

    Why it matters
    --------------
    The scores are a matrix of queries times keys for every head. With separate operators, each of
    them reads and writes that matrix in full. A fused kernel works on tiles that never leave the
    chip.

    How it is measured
    ------------------
    A fused kernel computes the same products, but only reads and writes queries, keys, values and
    results. Expected assumes that it reaches a configurable share of the device's peak, high two
    and a half times that rate, and low half of it. The saving is the difference from the current
    time of the separate kernels. Where the profile allows it, replaying the steps refines the
    expected saving.

    Without shapes, attention is a softmax between two products, with nothing but memory-bound
    kernels around it, at least twice in the profile. These kernels go, and the products stay, since
    a fused kernel computes them, too. Low is half of it.

    When to ignore
    --------------
    When the scores themselves are needed, for a figure or a loss. With short sequences, a fused
    kernel gains little, and the estimate says so.

    How to verify
    -------------
    Kernels with `flash`, `fmha` or `sdpa` in their names replace the softmax kernels, and peak
    memory falls.

    References:
    ----------
    Dao et al., "FlashAttention" (2022) and "FlashAttention-2" (2023); PyTorch documentation,
    `torch.nn.functional.scaled_dot_product_attention`.
    """

    id = "unfused-attention"
    title = "Use a fused attention kernel"
    category = "compute"
    needs = (Need.DEVICE_EVENTS, Need.KERNELS, Need.PYTORCH)
    is_preview = False

    minimum_share = Limit(0.02, "share", "A smaller gain is lost in the variation between steps.")
    fused_efficiency = Limit(
        0.3,
        "share",
        "FlashAttention-2 reaches a third of the peak of an H100 and two thirds of that of an "
        "A100; FlashAttention-3 reaches three quarters on an H100. Small heads and the backward "
        "pass reach somewhat less.",
    )
    launch_floor_ns = Limit(
        10_000, "ns", "Any fused kernel takes several microseconds to start and end."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when unfused attention takes much longer than a fused kernel."""
        yield from self._with_shapes(signals)
        yield from self._by_order(signals)

    def _with_shapes(self, signals: Signals) -> Iterable[Finding]:
        facts = signals.device_facts
        peaks = facts.peaks if facts else None
        attention = unfused_attention(signals)
        if peaks is None or not len(attention.rows):
            return
        group = attention.layer * 2 + attention.is_backward
        duration_ns = signals.trace.events.duration_ns[attention.rows]
        now_ns = np.bincount(group, weights=duration_ns, minlength=2 * len(attention.first))

        def then_ns(rate: float) -> Int64:
            fused_ns = fused_attention_ns(signals, attention, peaks, rate * self.fused_efficiency)
            fused_ns = np.maximum(fused_ns, self.launch_floor_ns)
            with np.errstate(divide="ignore", invalid="ignore"):
                remaining = np.fmin(np.nan_to_num(fused_ns / now_ns, nan=1.0), 1.0)
            return (duration_ns * remaining[group]).astype(np.int64)

        saving = faster_device_work(
            signals,
            attention.rows,
            then_ns(1),
            basis="modeled",
            least_then_ns=then_ns(2.5),
            most_then_ns=then_ns(0.5),
        )
        exposed_ns = saving.claimed_ns
        if self.is_minor(exposed_ns, signals) or saving.high_ns == 0:
            return
        cost_ns = time_within(signals, attention.rows, saving.claims)
        layers = len(distinct(attention.layer))
        yield Finding(
            instance=count_per_step(layers, "layer", signals),
            summary=(
                f"{per_step(exposed_ns, signals)} goes into unfused attention"
                f" ({count_per_step(layers, 'layer', signals)}): the scores pass through memory"
                f" {len(attention.rows) / layers:.0f} times per layer."
            ),
            saving=saving,
            evidence=(
                _by_size(attention, cost_ns, then_ns(1)),
                costliest("Longest attention kernels", signals.worker, attention.rows, cost_ns),
            ),
            remedies=advise("fused-attention"),
        )

    def _by_order(self, signals: Signals) -> Iterable[Finding]:
        """Without shapes: what lies between the two products goes, and the products stay."""
        attention = attention_by_order(signals)
        rows, layers = attention.rows, len(distinct(attention.layer))
        now_ns = signals.trace.events.duration_ns[rows]
        saving = faster_device_work(
            signals,
            rows,
            np.zeros_like(now_ns),
            basis="modeled",
            most_then_ns=now_ns // 2,
        )
        exposed_ns = saving.claimed_ns
        if not layers or self.is_minor(exposed_ns, signals):
            return
        yield Finding(
            instance=count_per_step(layers, "softmax", signals, plural="softmaxes"),
            summary=(
                f"{per_step(exposed_ns, signals)} goes into kernels between the two products of"
                f" unfused attention: {len(rows) / layers:.0f} around each softmax pass the scores"
                " through memory. A fused kernel keeps the scores on the chip."
            ),
            saving=saving,
            evidence=costly_work("kernels on the scores", signals, rows, saving.claims),
            remedies=advise("fused-attention"),
        )


def _by_size(attention: AttentionLayers, cost_ns: Int64, then_ns: Int64) -> Table:
    kinds = np.column_stack((attention.sizes[attention.layer], attention.is_backward))
    groups, inverse = np.unique(kinds, axis=0, return_inverse=True)
    inverse = inverse.ravel()
    rows: list[tuple[str, str, int, int, int, int]] = []
    for group, (heads, queries, keys, size, _, is_backward) in enumerate(groups.tolist()):
        in_group = inverse == group
        rows.append(
            (
                f"{heads} × {queries} × {keys}, heads of {size}",
                "backward" if is_backward else "forward",
                len(distinct(attention.layer[in_group])),
                int(in_group.sum()),
                int(cost_ns[in_group].sum()),
                int(then_ns[in_group].sum()),
            )
        )
    ranked = sorted(rows, key=lambda row: -row[4])
    return Table(
        "Attention by size",
        (
            Column("size", "Heads × queries × keys"),
            Column("direction", "Pass"),
            Column("layers", "Layers", "count"),
            Column("kernels", "Kernels", "count"),
            Column("total_ns", "Time now", "ns"),
            Column("fused_ns", "Time if fused", "ns"),
        ),
        tuple(ranked),
    )
