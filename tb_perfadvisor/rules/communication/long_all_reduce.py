"""All-reduces that take longer than their size explains."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.collectives import latency_and_bandwidth
from tb_perfadvisor.rules.evidence.tables import event_count
from tb_perfadvisor.rules.finding import Cell, Column, Finding, Table, costliest
from tb_perfadvisor.rules.savings.faster_collectives import faster_collectives, time_without_waiting
from tb_perfadvisor.signals import Need, Signals, collectives_of
from tb_perfadvisor.signals.core.collectives import Collectives, Mask
from tb_perfadvisor.signals.ranks.collective_costs import (
    all_reduce_sizes,
    hops,
    link_of_group,
    quickest_ns,
    slow_messages,
    wire_bytes,
    wire_time_ns,
)
from tb_perfadvisor.signals.ranks.collective_roles import Role
from tb_perfadvisor.signals.ranks.exposed_communication import has_role
from tb_perfadvisor.trace.tables import Float64, Int64
from tb_perfadvisor.units import NS_PER_S, format_duration, format_rate


class LongAllReduce(Rule):
    """All-reduces take much longer than their bytes need at the link's bandwidth.

    What it finds
    -------------
    All-reduces whose time, without waiting for other ranks, is a multiple of what their bytes need
    on the link.

    Why it matters
    --------------
    The rule of thumb for data-parallel training is parameters x 4 bytes / bandwidth. An all-reduce
    that takes far longer uses a slower path than it should, sends messages that are too small, or
    waits for a late rank. All of these can be fixed without changing the model.

    How it is measured
    ------------------
    The expected time of an all-reduce of S bytes over n ranks is 2 (n-1)/n x S / bandwidth for a
    ring and 2 S / bandwidth for a tree, plus a latency that grows with the number of hops. S and
    the data type come from the kernel in the trace or from the call that launched it. The sum per
    step is that of the all-reduces that whole steps launch, wherever they run. Without
    recorded sizes, S is the size of the gradients that autograd accumulates, or the number of
    parameters that the user gives (`--parameters`) times 4 bytes, unless the kernel's name shows
    another type. The bandwidth is that of the device's link in the hardware table, or
    `--link-bandwidth`. If all ranks were profiled, the actual time is the shortest over the ranks.
    The saving is the excess, as far as it is exposed. Where ranks are missing, the excess may be
    waiting, and nothing is estimated.

    When to ignore
    --------------
    When the ranks are on several nodes and the bandwidth assumed is that of the link within a node:
    pass the bandwidth of the slowest link with `--link-bandwidth`.

    How to verify
    -------------
    Run all_reduce_perf from nccl-tests (or rccl-tests) with the same size on the same ranks. After
    the change, the all-reduce takes about as long.

    References:
    ----------
    Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations"
    (2009); nccl-tests, doc/PERFORMANCE.md; NCCL, src/graph/tuning.cc (its model of rings and
    trees); TensorFlow guide, "Optimize TensorFlow GPU performance", section on AllReduce.
    """

    id = "long-all-reduce"
    title = "Speed up all-reduces that are slow for their size"
    category = "communication"
    refines = "exposed-communication"
    reads_sums = True
    needs = (Need.WORK, Need.COLLECTIVES, Need.COLLECTIVE_SIZES, Need.LINK_BANDWIDTH)
    is_preview = False

    minimum_ratio = Limit(
        2.0, "ratio", "NCCL reaches at least half of the link's bandwidth with large messages."
    )
    minimum_share = Limit(0.02, "share", "A smaller gain does not justify debugging the network.")
    latency_ns = Limit(
        30_000,
        "ns",
        "Launch and latency of one all-reduce within a node take less than 30 microseconds.",
    )

    hop_ns = Limit(
        3_400,
        "ns",
        "NCCL's own model assumes 0.5 to 3.4 microseconds per hop of a ring over NVLink.",
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when all-reduces far exceed their expected time."""
        collectives = collectives_of(signals)
        all_reduces = collectives.of("all-reduce")
        if not all_reduces.any():
            return
        size = all_reduce_sizes(signals, all_reduces)
        known = all_reduces & (size.bytes >= 0) & (collectives.group_size >= 2)
        expected = self._expected_ns(signals, collectives, size.bytes)
        taken_ns = time_without_waiting(signals)
        is_long = known & (taken_ns > self.minimum_ratio * expected)
        target = np.where(is_long, expected, np.inf)
        saving = faster_collectives(signals, known, target)
        if self.is_minor(saving.high_ns, signals):
            return
        excess = np.minimum(np.maximum(taken_ns - target, 0), collectives.exposed_ns)
        bandwidth = float(np.median(link_of_group(signals)[is_long]))
        is_sure = bool((collectives.transfer_ns[is_long] >= 0).all())
        total_ns, expected_ns = float(taken_ns[known].sum()), float(expected[known].sum())
        steps = signals.steps.count
        if size.whole is not None:
            sent, steps = size.whole.collectives, size.whole.steps
            total_ns = float(sent.without_waiting_ns.sum())
            expected_ns = float(self._expected_ns(signals, sent, sent.size_bytes).sum())
        yield Finding(
            instance=(
                f"{format_duration(total_ns / steps)}, not {format_duration(expected_ns / steps)}"
            ),
            summary=(
                f"The all-reduce{f' of {size.text} per step' if size.text else 's of a step'} takes"
                f" {format_duration(total_ns / steps)}"
                f"{'' if is_sure else ', including waiting for other ranks'}; at"
                f" {format_rate(bandwidth, 'B/s')} it should take"
                f" {format_duration(expected_ns / steps)}."
            ),
            saving=saving,
            evidence=(
                _by_size(signals, known, size.bytes, expected, excess),
                *latency_and_bandwidth(signals, ("all-reduce",)),
                costliest(
                    "All-reduces with the largest excess",
                    signals.worker,
                    collectives.row[is_long],
                    excess[is_long],
                ),
            ),
            remedies=advise(*_changes(signals, is_long)),
        )

    def _expected_ns(
        self, signals: Signals, collectives: Collectives, size_bytes: Float64 | Int64
    ) -> Float64:
        """Time on the link, plus latency; shape (n,)."""
        latency = np.maximum(self.latency_ns, self.hop_ns * hops(signals, collectives))
        on_link: Float64 = wire_time_ns(signals, collectives, size_bytes.astype(np.float64))
        return np.asarray(on_link + latency, dtype=np.float64)


def _changes(signals: Signals, chosen: Mask) -> tuple[str, ...]:
    """Fewer bytes help only where all of them are 32-bit gradients, and a slow link comes first."""
    is_wide = collectives_of(signals).is_32_bit & has_role(signals, Role.GRADIENTS)
    narrow = ("narrow-gradients",) if is_wide[chosen].all() else ()
    link = ("link-path", "link-test")
    return (*link, *narrow) if slow_messages(signals) is not None else (*narrow, *link)


def _by_size(
    signals: Signals, known: Mask, size: Float64, expected: Float64, excess: Float64
) -> Table:
    """Group messages by size, type and group size; the most exposed excess first."""
    collectives, quickest = collectives_of(signals), quickest_ns(signals)
    taken_ns = time_without_waiting(signals)
    wire, is_recorded = wire_bytes(signals), collectives.sizes_known
    classes: dict[tuple[int, str, int], list[int]] = {}
    for index in np.flatnonzero(known).tolist():
        kind = int(size[index]) if is_recorded else -1, collectives.dtype[index]
        classes.setdefault((*kind, int(collectives.group_size[index])), []).append(index)
    rows: list[tuple[Cell, ...]] = []
    for (size_bytes, dtype, ranks), members in classes.items():
        best = int(quickest[members].min())
        rate = float(wire[members[0]]) / best * NS_PER_S if size_bytes > 0 and best > 0 else None
        rows.append(
            (
                size_bytes if size_bytes >= 0 else None,
                dtype or None,
                ranks,
                event_count(signals.trace, len(members)),
                round(float(np.median(taken_ns[members]))),
                round(float(np.median(expected[members]))),
                best,
                rate,
                int(excess[members].sum()),
            )
        )
    return Table(
        "All-reduce times, actual and expected",
        (
            Column("size_bytes", "Size", "bytes"),
            Column("dtype", "Type"),
            Column("ranks", "Ranks", "count"),
            Column("count", "Count", "count"),
            Column("actual_ns", "Median", "ns"),
            Column("expected_ns", "Expected", "ns"),
            Column("quickest_ns", "Fastest", "ns"),
            Column("bandwidth", "Bus bandwidth of the fastest", "bytes/s"),
            Column("exposed_ns", "Exposed excess", "ns"),
        ),
        tuple(sorted(rows, key=lambda row: -int(row[-1] or 0))),
    )
