"""All-reduces that take longer than their bytes need."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.rules.base import Finding, Limit, Remedy, Rule, Saving, share_of_window
from tb_perfadvisor.rules.evidence import Column, Events, Table
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.attribution import Cause
from tb_perfadvisor.signals.collectives import exposed_part
from tb_perfadvisor.trace.intervals import total_ns
from tb_perfadvisor.trace.tables import Float64
from tb_perfadvisor.units import format_bytes, format_duration
from tb_perfadvisor.whatif import Shorten

_FP32_BYTES = 4

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
    Expected time of one all-reduce of S bytes over n ranks: 2 (n-1)/n x S / bandwidth, plus a
    latency for each message. S and its type are the trace's; without sizes, parameters x 4
    bytes per step as the user gives them (`--parameters`). The bandwidth is the device's link
    from the hardware table, or `--link-bandwidth`. Its time is the shortest over the ranks
    where all ranks are there. The saving is the excess, as far as it is exposed; when ranks
    are missing the excess may be waiting, so low is 0 and expected half.

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
    (2009); nccl-tests, doc/PERFORMANCE.md; TensorFlow guide, "Optimize TensorFlow GPU
    performance", section on AllReduce.
    """

    id = "long-all-reduce"
    title = "Bring the all-reduce down to what its bytes need"
    category = "communication"
    refines = "exposed-communication"
    needs = (Need.WORK, Need.COLLECTIVES, Need.COLLECTIVE_SIZES, Need.LINK_BANDWIDTH)
    is_preview = False

    minimum_ratio = Limit(
        2.0, "ratio", "NCCL reaches half of the link's bandwidth or more on large messages."
    )
    minimum_share = Limit(
        0.02, "share", "Less than two per cent of the step is not worth a look at the network."
    )
    latency_ns = Limit(
        30_000,
        "ns",
        "Launch and latency of one all-reduce within a node are below 30 microseconds.",
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when all-reduces exceed their expected time by far."""
        collectives = signals.collectives
        bandwidth = signals.link_bandwidth_bytes_per_s
        own = np.array([one == "all-reduce" for one in collectives.operation], dtype=bool)
        if bandwidth is None or not own.any():
            return
        expected = self._expected_ns(signals, own, bandwidth)
        if expected is None:
            return
        is_known = collectives.transfer_ns[own] >= 0
        actual = np.where(is_known, collectives.transfer_ns[own], collectives.duration_ns[own])
        excess = np.maximum(actual - expected, 0)
        excess = np.where(actual > self.limit("minimum_ratio") * expected, excess, 0)
        exposed = np.minimum(excess, collectives.exposed_ns[own])
        guilty = exposed > 0
        events, rows = signals.trace.events, collectives.row[own][guilty]
        claims = exposed_part(
            signals.trace, rows, signals.attribution.intervals[Cause.COMMUNICATION]
        )
        high = min(round(float(exposed.sum())), total_ns(claims))
        if share_of_window(high, signals) < self.limit("minimum_share") or high == 0:
            return
        is_sure = bool(is_known.all())
        saved = excess[guilty] if is_sure else excess[guilty] / 2
        worst = np.flatnonzero(guilty)
        worst = worst[np.argsort(-exposed[worst], kind="stable")]
        sizes = collectives.size_bytes[own][worst]
        step_count = signals.steps.count
        total_bytes = collectives.size_bytes[own]
        size = (
            format_bytes(int(total_bytes.sum()) // step_count)
            if (total_bytes >= 0).all()
            else (f"{signals.options.parameters:,} parameters")
        )
        yield Finding(
            summary=(
                f"The all-reduce of {size} per step takes"
                f" {format_duration(float(actual.sum()) / step_count)}; over"
                f" {bandwidth / 1e9:.0f} GB/s it should take"
                f" {format_duration(float(expected.sum()) / step_count)}."
            ),
            saving=Saving(
                high if is_sure else 0,
                high if is_sure else high // 2,
                high,
                claims,
                "modelled",
                (Shorten(rows, events.duration_ns[rows] - saved.astype(np.int64)),),
            ),
            evidence=(
                Table(
                    "All-reduces against what their bytes need",
                    (
                        Column("size_bytes", "Size", "bytes"),
                        Column("ranks", "Ranks", "count"),
                        Column("actual_ns", "Takes", "ns"),
                        Column("expected_ns", "Should take", "ns"),
                        Column("exposed_ns", "Exposed excess", "ns"),
                    ),
                    tuple(
                        zip(
                            [size if size >= 0 else None for size in sizes.tolist()],
                            collectives.group_size[own][worst].tolist(),
                            actual[worst].tolist(),
                            np.rint(expected[worst]).astype(np.int64).tolist(),
                            exposed[worst].astype(np.int64).tolist(),
                            strict=True,
                        )
                    ),
                ),
                Events(
                    "The all-reduces with the largest excess",
                    collectives.row[own][worst],
                    signals.worker,
                ),
            ),
            remedies=_REMEDIES,
        )

    def _expected_ns(
        self, signals: Signals, own: np.ndarray[tuple[int], np.dtype[np.bool_]], bandwidth: float
    ) -> Float64 | None:
        """What each all-reduce should take; None when sizes or ranks are unknown."""
        collectives = signals.collectives
        ranks = collectives.group_size[own].astype(np.float64)
        size = collectives.size_bytes[own].astype(np.float64)
        if (ranks < 2).any():
            return None
        if (size < 0).any():
            if signals.options.parameters is None:
                return None
            # The rule of thumb (parameters x 4 bytes), spread over the step's all-reduces.
            per_step = signals.options.parameters * _FP32_BYTES * signals.steps.count
            duration = collectives.duration_ns[own]
            size = per_step * duration / max(int(duration.sum()), 1)
        wire = 2 * (ranks - 1) / ranks * size / bandwidth * 1e9
        return np.asarray(wire + self.limit("latency_ns"), dtype=np.float64)
