"""All-reduces that take longer than their bytes need."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from tb_perfadvisor.rules.base import Finding, Limit, Remedy, Rule, share_of_window
from tb_perfadvisor.rules.communication.fits import fits
from tb_perfadvisor.rules.communication.shortened import shortened, taken_ns
from tb_perfadvisor.rules.evidence.evidence import Cell, Column, Table, costliest
from tb_perfadvisor.rules.evidence.tables import times
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.core.collectives import Mask
from tb_perfadvisor.signals.ranks.messages import (
    hops,
    link_of_group,
    quickest_ns,
    wire_bytes,
    wire_time_ns,
)
from tb_perfadvisor.signals.steps.gradient_accumulation import gradient_bytes
from tb_perfadvisor.trace.tables import Float64
from tb_perfadvisor.units import NS_PER_S, format_bytes, format_duration, format_rate

_FP32_BYTES = 4
_HALVES = {"half", "bfloat16", "c10::half", "c10::bfloat16", "f16", "bf16"}

_REMEDIES = (
    Remedy(
        text="Send gradients in 16 bits: half the bytes.",
        snippet=(
            "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks\n"
            "model.register_comm_hook(state=None, hook=default_hooks.bf16_compress_hook)"
        ),
        framework="pytorch",
        reference="https://pytorch.org/docs/stable/ddp_comm_hooks.html",
    ),
    Remedy(
        text="See which path NCCL takes: NVLink or InfiniBand, not sockets.",
        snippet="NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH torchrun train.py",
        language="bash",
        framework="pytorch",
        reference="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",
    ),
    Remedy(
        text="Measure the link itself, then set NCCL's interfaces and protocol.",
        snippet="NCCL_DEBUG=INFO python train.py 2>&1 | grep -E 'via|Ring|Tree'",
        language="bash",
        reference="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",
    ),
)


class LongAllReduce(Rule):
    """All-reduces take much longer than their bytes over the link's bandwidth.

    What it finds
    -------------
    All-reduces whose time, waiting for other ranks taken off, is a multiple of what the link
    needs for their bytes.

    Why it matters
    --------------
    The rule of thumb for data parallel training is parameters x 4 bytes / bandwidth. Far above
    it, the collective takes a slower path than it should, its messages are too small, or a
    rank is late: each can be mended without touching the model.

    How it is measured
    ------------------
    Expected time of one all-reduce of S bytes over n ranks: 2 (n-1)/n x S / bandwidth for a
    ring, 2 S / bandwidth for a tree, and a latency that grows with the hops. S and its type are
    the trace's, of the kernel or of the call that launched it; without sizes, the gradients
    that autograd adds up, or parameters as the user gives them (`--parameters`) times the bytes
    of a number on the wire, 4 unless the kernel's name tells another type. The bandwidth is the
    device's link from the hardware table, or `--link-bandwidth`. Its time is the shortest over
    the ranks where all ranks are there. The saving is the excess, as far as it is exposed; when
    ranks are missing the excess may be waiting, so low is 0 and expected half.

    When to ignore
    --------------
    When ranks sit on several nodes and the hardware table's link within a node was assumed:
    give the slowest link's bandwidth with `--link-bandwidth`.

    How to verify
    -------------
    Run nccl-tests' all_reduce_perf (or rccl-tests) with the same size on the same ranks; after
    the change the all-reduce approaches that time.

    References:
    ----------
    Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations"
    (2009); nccl-tests, doc/PERFORMANCE.md; NCCL, src/graph/tuning.cc (its model of rings and
    trees); TensorFlow guide, "Optimize TensorFlow GPU performance", section on AllReduce.
    """

    id = "long-all-reduce"
    title = "Bring the all-reduce down to what its bytes need"
    category = "communication"
    refines = "exposed-communication"
    reads_sums = True
    needs = (Need.WORK, Need.COLLECTIVES, Need.COLLECTIVE_SIZES, Need.LINK_BANDWIDTH)
    is_preview = False

    minimum_ratio = Limit(
        2.0, "ratio", "NCCL reaches half of the link's bandwidth or more on large messages."
    )
    minimum_share = Limit(
        0.02, "share", "Less than two percent of the step is not worth a look at the network."
    )
    latency_ns = Limit(
        30_000,
        "ns",
        "Launch and latency of one all-reduce within a node are below 30 microseconds.",
    )

    hop_ns = Limit(
        3_400,
        "ns",
        "NCCL's own model has 0.5 to 3.4 microseconds for each hop of a ring over NVLink.",
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when all-reduces exceed their expected time by far."""
        collectives = signals.collectives
        own = collectives.of("all-reduce")
        if not own.any():
            return
        size = _sizes(signals, own)
        known = own & (size.bytes >= 0) & (collectives.group_size >= 2)
        expected = wire_time_ns(signals, size.bytes)
        expected += np.maximum(self.limit("latency_ns"), self.limit("hop_ns") * hops(signals))
        taken = taken_ns(signals)
        is_long = known & (taken > self.limit("minimum_ratio") * expected)
        target = np.where(is_long, expected, np.inf)
        saving = shortened(signals, known, target)
        if saving is None or share_of_window(saving.high_ns, signals) < self.limit("minimum_share"):
            return
        excess = np.minimum(np.maximum(taken - target, 0), collectives.exposed_ns)
        bandwidth = float(np.median(link_of_group(signals)[is_long]))
        is_sure = bool((collectives.transfer_ns[is_long] >= 0).all())
        steps = signals.steps.count
        yield Finding(
            summary=(
                f"The all-reduce of {size.text} per step takes"
                f" {format_duration(float(taken[known].sum()) / steps)}"
                f"{'' if is_sure else ', waiting for other ranks included'}; over"
                f" {format_rate(bandwidth, 'B/s')} it should take"
                f" {format_duration(float(expected[known].sum()) / steps)}."
            ),
            saving=saving,
            evidence=tuple(
                one
                for one in (
                    _by_size(signals, known, size.bytes, expected, excess),
                    fits(signals, ("all-reduce",)),
                    costliest(
                        "The all-reduces with the largest excess",
                        signals.worker,
                        collectives.row[is_long],
                        excess[is_long],
                    ),
                )
                if one is not None
            ),
            remedies=_REMEDIES,
        )


class _Sizes(NamedTuple):
    """Bytes of each collective, shape (n,), -1 where unknown; and what a step has, in words."""

    bytes: Float64
    text: str


def _sizes(signals: Signals, own: Mask) -> _Sizes:
    """The recorded sizes; without them the gradients', spread over a step's all-reduces by time.

    Those are parameters as the user gives them, or what autograd adds up.
    """
    collectives, steps = signals.collectives, signals.steps.count
    if collectives.sizes_known:
        size = np.where(own, collectives.size_bytes, -1).astype(np.float64)
        return _Sizes(size, format_bytes(int(size[size > 0].sum()) // steps))
    parameters, per_step = signals.options.parameters, gradient_bytes(signals)
    if parameters is not None:
        per_step = parameters * _item_bytes(signals, own)
        text = f"{parameters:,} parameters"
    elif per_step is not None:
        text = f"{format_bytes(per_step)} of gradients"
    else:
        return _Sizes(np.full(len(collectives), -1.0), "")
    duration = np.where(own, collectives.duration_ns, 0)
    share = duration / max(int(duration.sum()), 1)
    return _Sizes(np.where(own, per_step * steps * share, -1.0), text)


def _item_bytes(signals: Signals, own: Mask) -> int:
    """Of a gradient on the wire: as its kernels tell, else 4."""
    types = {
        dtype.lower()
        for dtype, is_own in zip(signals.collectives.dtype, own, strict=True)
        if is_own and dtype
    }
    return 2 if types and types <= _HALVES else _FP32_BYTES


def _by_size(
    signals: Signals, known: Mask, size: Float64, expected: Float64, excess: Float64
) -> Table:
    """Messages of one size, type and group size together, the most exposed excess first."""
    collectives, taken, quickest = signals.collectives, taken_ns(signals), quickest_ns(signals)
    wire, is_recorded = wire_bytes(signals), collectives.sizes_known
    classes: dict[tuple[int, str, int], list[int]] = {}
    for index in np.flatnonzero(known).tolist():
        kind = int(size[index]) if is_recorded else -1, collectives.dtype[index]
        classes.setdefault((*kind, int(collectives.group_size[index])), []).append(index)
    rows: list[tuple[Cell, ...]] = []
    for (size_bytes, dtype, ranks), one in classes.items():
        best = int(quickest[one].min())
        rate = float(wire[one[0]]) / best * NS_PER_S if size_bytes > 0 and best > 0 else None
        rows.append(
            (
                size_bytes if size_bytes >= 0 else None,
                dtype or None,
                ranks,
                times(signals.trace, len(one)),
                round(float(np.median(taken[one]))),
                round(float(np.median(expected[one]))),
                best,
                rate,
                int(excess[one].sum()),
            )
        )
    return Table(
        "All-reduces against what their bytes need",
        (
            Column("size_bytes", "Size", "bytes"),
            Column("dtype", "Type"),
            Column("ranks", "Ranks", "count"),
            Column("count", "Times", "count"),
            Column("actual_ns", "Takes (median)", "ns"),
            Column("expected_ns", "Should take", "ns"),
            Column("quickest_ns", "Quickest", "ns"),
            Column("bandwidth", "Its bus bandwidth", "bytes/s"),
            Column("exposed_ns", "Exposed excess", "ns"),
        ),
        tuple(sorted(rows, key=lambda row: -int(row[-1] or 0))),
    )
