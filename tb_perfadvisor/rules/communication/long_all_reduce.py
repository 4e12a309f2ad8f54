"""All-reduces that take longer than their bytes need."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.rules.base import Finding, Limit, Remedy, Rule, share_of_window
from tb_perfadvisor.rules.communication.shortened import Mask, shortened, taken_ns
from tb_perfadvisor.rules.evidence import Cell, Column, Events, Table
from tb_perfadvisor.rules.tables import times
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.messages import wire_bytes
from tb_perfadvisor.trace.tables import Float64
from tb_perfadvisor.units import format_bytes, format_duration, format_rate

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
    reads_sums = True
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
        taken = taken_ns(signals)
        target = np.full(len(collectives), np.inf)
        target[own] = expected
        target[taken <= self.limit("minimum_ratio") * target] = np.inf
        saving = shortened(signals, own, target)
        if saving is None or share_of_window(saving.high_ns, signals) < self.limit("minimum_share"):
            return
        actual = taken[own]
        exposed = np.minimum(np.maximum(taken - target, 0), collectives.exposed_ns)[own]
        worst = np.flatnonzero(exposed > 0)
        worst = worst[np.argsort(-exposed[worst], kind="stable")]
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
                f" {format_rate(bandwidth, 'B/s')} it should take"
                f" {format_duration(float(expected.sum()) / step_count)}."
            ),
            saving=saving,
            evidence=(
                _by_size(signals, own, expected, exposed),
                Events(
                    "The all-reduces with the largest excess",
                    collectives.row[own][worst],
                    signals.worker,
                ),
            ),
            remedies=_REMEDIES,
        )

    def _expected_ns(self, signals: Signals, own: Mask, bandwidth: float) -> Float64 | None:
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


def _by_size(signals: Signals, own: Mask, expected: Float64, exposed: Float64) -> Table:
    """Messages of one size and group size together, the most exposed excess first."""
    collectives, taken = signals.collectives, taken_ns(signals)[own]
    wire = wire_bytes(signals)[own]
    keys = np.stack([collectives.size_bytes[own], collectives.group_size[own]], axis=1)
    classes, of_row = np.unique(keys, axis=0, return_inverse=True)
    rows: list[tuple[Cell, ...]] = []
    for index, (size, ranks) in enumerate(classes.tolist()):
        one = of_row.reshape(-1) == index
        time_ns = float(np.median(taken[one]))
        rate = float(np.median(wire[one])) / time_ns * 1e9 if size > 0 and time_ns > 0 else None
        rows.append(
            (
                size if size >= 0 else None,
                ranks,
                times(signals.trace, int(one.sum())),
                round(time_ns),
                round(float(np.median(expected[one]))),
                rate,
                int(exposed[one].sum()),
            )
        )
    return Table(
        "All-reduces against what their bytes need",
        (
            Column("size_bytes", "Size", "bytes"),
            Column("ranks", "Ranks", "count"),
            Column("count", "Times", "count"),
            Column("actual_ns", "Takes", "ns"),
            Column("expected_ns", "Should take", "ns"),
            Column("bandwidth", "Bus bandwidth", "bytes/s"),
            Column("exposed_ns", "Exposed excess", "ns"),
        ),
        tuple(sorted(rows, key=lambda row: -int(row[-1] or 0))),
    )
