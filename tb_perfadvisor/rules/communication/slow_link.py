"""Large messages that are far slower than the link allows."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.collectives import most_exposed
from tb_perfadvisor.rules.finding import Cell, Column, Finding, Table
from tb_perfadvisor.rules.savings.faster_collectives import faster_collectives, time_without_waiting
from tb_perfadvisor.signals import Need, Signals, collectives_of
from tb_perfadvisor.signals.core.collectives import Collectives
from tb_perfadvisor.signals.ranks.collective_costs import link_of_group, wire_bytes
from tb_perfadvisor.trace.integer_groups import group_rows
from tb_perfadvisor.trace.tables import Float64
from tb_perfadvisor.units import NS_PER_S, format_rate


class SlowLink(Rule):
    """Large collectives reach only a fraction of the link's bandwidth.

    What it finds
    -------------
    Collectives of a megabyte or more whose bytes on the wire, divided by their time without
    waiting, are far below the bandwidth of the link.

    Why it matters
    --------------
    Only bandwidth limits large messages. If they reach a fraction of it, they take an unintended
    path: through host memory, over sockets, or over only one of several network cards.

    How it is measured
    ------------------
    Bus bandwidth as nccl-tests defines it: 2 (n-1)/n of the bytes of an all-reduce, (n-1)/n of
    those of a gather, scatter or all-to-all, divided by the shortest time over all ranks. The
    target is the share of the link's bandwidth that libraries reach. If the fastest large message
    of a group gets a fair share, the link is good, and slower ones wait or have another problem.
    High is the exposed excess over the target. Where ranks are missing, the excess may be waiting,
    and nothing is estimated.

    When to ignore
    --------------
    When the ranks are on several nodes and the bandwidth assumed is that of the link within a node:
    pass the bandwidth of the slowest link with `--link-bandwidth`.

    How to verify
    -------------
    The bandwidth in the table rises to what nccl-tests measures on the same ranks.

    References:
    ----------
    nccl-tests, doc/PERFORMANCE.md.
    """

    id = "slow-link"
    title = "Find out why large messages use so little of the link"
    category = "communication"
    refines = "exposed-communication"
    needs = (Need.WORK, Need.COLLECTIVES, Need.COLLECTIVE_SIZES, Need.LINK_BANDWIDTH)
    is_preview = False

    large_bytes = Limit(1_000_000, "bytes", "From a megabyte on, bandwidth outweighs latency.")
    reachable_share = Limit(
        0.7, "share", "NCCL's large all-reduces reach 70 to 90 percent of the link's bandwidth."
    )
    maximum_share = Limit(
        0.35, "share", "Bad tuning alone does not cost half of the reachable bandwidth."
    )
    minimum_share = Limit(0.02, "share", "A smaller gain does not justify debugging the network.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when large messages are slow."""
        collectives, wire = collectives_of(signals), wire_bytes(signals)
        link = link_of_group(signals)
        taken_ns = time_without_waiting(signals)
        large = np.isfinite(wire) & (collectives.size_bytes >= self.large_bytes)
        large &= taken_ns > 0
        rate = np.where(large, wire, 0) / np.maximum(taken_ns, 1) * NS_PER_S
        slow = large & (_best_of_group(collectives, rate) < self.maximum_share * link)
        reachable = self.reachable_share * link
        saving = faster_collectives(signals, slow, np.where(slow, wire, 0) / reachable * NS_PER_S)
        if self.is_minor(saving.high_ns, signals):
            return
        rows: list[tuple[Cell, ...]] = []
        for operation in sorted(collectives.operation.texts):
            chosen = large & collectives.of(operation)
            if chosen.any():
                rows.append(
                    (
                        operation,
                        int(chosen.sum()),
                        int(np.median(collectives.size_bytes[chosen])),
                        float(np.median(rate[chosen])),
                        float(rate[chosen].max()),
                        float(np.median(link[chosen])),
                    )
                )
        best, bandwidth = float(rate[slow].max()), float(np.median(link[slow]))
        yield Finding(
            instance=f"{format_rate(best, 'B/s')} of {format_rate(bandwidth, 'B/s')}",
            summary=(
                f"Slow transfer of large messages costs up to {per_step(saving.high_ns, signals)}:"
                f" the fastest of {int(slow.sum()):,} collectives reaches"
                f" {format_rate(best, 'B/s')} on a link of {format_rate(bandwidth, 'B/s')}."
            ),
            saving=saving,
            evidence=(
                Table(
                    "Bandwidth of large messages",
                    (
                        Column("operation", "Operation"),
                        Column("count", "Count", "count"),
                        Column("size_bytes", "Median size", "bytes"),
                        Column("bandwidth", "Median bus bandwidth", "bytes/s"),
                        Column("best", "Best bus bandwidth", "bytes/s"),
                        Column("link", "Link bandwidth", "bytes/s"),
                    ),
                    tuple(rows),
                ),
                most_exposed("Most exposed large collectives", signals, slow),
            ),
            remedies=advise("link-path", "link-test"),
        )


def _best_of_group(collectives: Collectives, rate: Float64) -> Float64:
    """For each collective, the highest rate that its group reached in any; shape (n,)."""
    first, group = group_rows(collectives.group.code, collectives.group_size)
    best = np.zeros(len(first))
    np.maximum.at(best, group, rate)
    return best[group]
