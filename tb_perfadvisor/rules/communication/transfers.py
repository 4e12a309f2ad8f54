"""How much is sent, in which pieces, and over which links."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from msgspec.structs import replace

from tb_perfadvisor.advice import Remedy, advise
from tb_perfadvisor.rules.amounts import count_per_step, in_analyzed, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.collectives import (
    collective_totals,
    most_exposed,
)
from tb_perfadvisor.rules.evidence.tables import event_count
from tb_perfadvisor.rules.finding import Cell, Column, Evidence, Finding, Saving, Table, costliest
from tb_perfadvisor.rules.savings import faster_collectives, time_without_waiting
from tb_perfadvisor.signals import Need, Signals, collectives_of
from tb_perfadvisor.signals.core.collectives import Collectives, Mask
from tb_perfadvisor.signals.ranks.collective_costs import (
    all_reduce_sizes,
    hops,
    link_bandwidth_bytes_per_s,
    link_of_group,
    quickest_ns,
    slow_messages,
    wire_bytes,
    wire_time_ns,
)
from tb_perfadvisor.signals.ranks.collective_roles import Role
from tb_perfadvisor.signals.ranks.exposed_communication import has_role
from tb_perfadvisor.signals.workload.workload import Part, workload
from tb_perfadvisor.trace import EventKind, Precision
from tb_perfadvisor.trace.integer_groups import group_rows, places_by_value
from tb_perfadvisor.trace.intervals import clip, minus, overlap_ns, total_ns
from tb_perfadvisor.trace.tables import Float64, Int64
from tb_perfadvisor.units import NS_PER_S, format_duration, format_rate, format_share


class LongAllReduce(Rule):
    """All-reduces take much longer than their bytes need at the link's bandwidth."""

    id = "long-all-reduce"
    title = "Speed up all-reduces that are slow for their size"
    refines = "exposed-communication"
    reads_sums = True
    needs = (Need.WORK, Need.COLLECTIVES, Need.COLLECTIVE_SIZES, Need.LINK_BANDWIDTH)
    is_preview = False

    minimum_ratio = Limit(
        2.0, "ratio", "NCCL reaches at least half of the link's bandwidth with large messages."
    )
    minimum_share = Limit(0.02, "share", "A smaller gain does not justify debugging the network.")
    latency_ns = 30_000
    """Launch and latency of one all-reduce within a node take less than 30 microseconds."""

    hop_ns = 3_400
    """NCCL's own model assumes 0.5 to 3.4 microseconds per hop of a ring over NVLink."""

    def check(self, signals: Signals) -> Iterable[Finding]:
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


class SlowLink(Rule):
    """Large collectives reach only a fraction of the link's bandwidth."""

    id = "slow-link"
    title = "Find out why large messages use so little of the link"
    refines = "exposed-communication"
    needs = (Need.WORK, Need.COLLECTIVES, Need.COLLECTIVE_SIZES, Need.LINK_BANDWIDTH)
    is_preview = False

    large_bytes = 1_000_000
    """From a megabyte on, bandwidth outweighs latency."""
    reachable_share = 0.7
    """NCCL's large all-reduces reach 70 to 90 percent of the link's bandwidth."""
    maximum_share = Limit(
        0.35, "share", "Bad tuning alone does not cost half of the reachable bandwidth."
    )
    minimum_share = Limit(0.02, "share", "A smaller gain does not justify debugging the network.")

    def check(self, signals: Signals) -> Iterable[Finding]:
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


_USUAL_BUCKET_MB = 25
"""The default of DistributedDataParallel."""


class SmallMessages(Rule):
    """Collectives are so small that starting them takes longer than sending the data."""

    id = "small-messages"
    title = "Combine small collectives into larger ones"
    refines = "exposed-communication"
    needs = (Need.WORK, Need.COLLECTIVES)
    is_preview = False

    small_bytes = 262_144
    """Below 256 KiB, the time of a collective hardly depends on its size."""
    small_ns = 50_000
    """The latency of a collective within a node is below 50 microseconds."""
    minimum_count = 20
    """A few gradient buckets and a few metrics add up to this many per step."""
    minimum_share = Limit(0.005, "share", "A smaller gain is not worth the code.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        collectives = collectives_of(signals)
        if signals.trace.totals is not None:
            return
        taken_ns = time_without_waiting(signals)
        small = self._small(signals)
        target_ns = np.zeros(len(collectives))
        chosen = np.zeros(len(collectives), dtype=bool)
        rows: list[tuple[Cell, ...]] = []
        operations, groups = collectives.operation, collectives.group
        first, kind = group_rows(operations.code, groups.code)
        kinds = sorted((operations[i], groups[i], at) for at, i in enumerate(first.tolist()))
        candidates = np.flatnonzero(small)
        by_kind = {at: candidates[places] for at, places in places_by_value(kind[candidates])}
        for operation, _, at in kinds:
            of_kind = by_kind.get(at, candidates[:0])
            count = len(of_kind)
            steps = signals.steps.count
            if count < self.minimum_count * steps:
                continue
            # One message of each kind remains per step.
            target_ns[of_kind] = taken_ns[of_kind] * (steps / count)
            chosen[of_kind] = True
            sizes = collectives.size_bytes[of_kind]
            rows.append(
                (
                    operation,
                    count,
                    int(sizes.sum()) if (sizes >= 0).all() else None,
                    float(np.median(taken_ns[of_kind])),
                    int(collectives.exposed_ns[of_kind].sum()),
                )
            )
        saving = faster_collectives(signals, chosen, target_ns)
        if self.is_minor(saving.high_ns, signals):
            return
        median = format_duration(float(np.median(taken_ns[chosen])))
        yield Finding(
            instance=count_per_step(int(chosen.sum()), "small collective", signals),
            summary=(
                f"{count_per_step(int(chosen.sum()), 'small collective', signals)} (of"
                f" {len(collectives) / signals.steps.count:,.0f}) take"
                f" {per_step(int(collectives.exposed_ns[chosen].sum()), signals)} with no compute"
                f" beside them; the median one takes {median}."
            ),
            saving=saving,
            evidence=_evidence(signals, chosen, rows),
            remedies=(*_buckets(signals, chosen), *advise("packed-messages")),
        )

    def _small(self, signals: Signals) -> Mask:
        collectives = collectives_of(signals)
        sized = collectives.size_bytes >= 0
        by_size = collectives.size_bytes <= self.small_bytes
        by_time = collectives.duration_ns <= self.small_ns
        needed_at_once = has_role(
            signals, Role.TENSOR, Role.CONTEXT, Role.PIPELINE, Role.EXPERTS, Role.EMBEDDINGS
        )
        is_small: Mask = np.where(sized, by_size, by_time) & ~needed_at_once
        return is_small


def _buckets(signals: Signals, chosen: Mask) -> tuple[Remedy, ...]:
    """Larger buckets, if gradients are among the small messages."""
    if not (chosen & has_role(signals, Role.GRADIENTS)).any():
        return ()
    return advise("larger-buckets", bucket_mb=_USUAL_BUCKET_MB)


def _evidence(signals: Signals, chosen: Mask, rows: list[tuple[Cell, ...]]) -> tuple[Evidence, ...]:
    table = Table(
        f"Small collectives {in_analyzed(signals)}",
        (
            Column("operation", "Operation"),
            Column("count", "Count", "count"),
            Column("size_bytes", "Bytes", "bytes"),
            Column("median_ns", "Median", "ns"),
            Column("exposed_ns", "Exposed", "ns"),
        ),
        tuple(rows),
    )
    return (table, most_exposed("Most exposed small collectives", signals, chosen))


class HostBackend(Rule):
    """Collectives run on the host although the program computes on a device."""

    id = "host-backend"
    title = "Run collectives on the device, not on the host"
    needs = (Need.WORK, Need.DEVICE_EVENTS, Need.COLLECTIVES)

    minimum_share = Limit(0.02, "share", "A barrier or a flag on the host takes less.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        collectives, events = collectives_of(signals), signals.trace.events
        on_host = events.kind[collectives.row] == EventKind.HOST_COLLECTIVE
        if not on_host.any():
            return
        rows = collectives.row[on_host]
        window = signals.attribution
        inside = clip(
            events.spans(rows),
            window.window_start_ns,
            window.window_end_ns,
        )
        claims = minus(inside, signals.device.busy)
        idle_ns = total_ns(claims)
        wire = wire_bytes(signals)[on_host]
        link = link_bandwidth_bytes_per_s(signals)
        on_link_ns = 0
        if link is not None and np.isfinite(wire).all():
            on_link_ns = round(float(wire.sum()) / link * NS_PER_S)
        high = max(idle_ns - on_link_ns, 0)
        if self.is_minor(high, signals):
            return
        inside_ns = overlap_ns(claims, events.start_ns[rows], events.end_ns[rows])
        sizes = collectives.size_bytes[on_host]
        yield Finding(
            instance=f"the device idles {per_step(idle_ns, signals)}",
            summary=(
                f"The device idles {per_step(idle_ns, signals)} during collectives that run on the"
                " host."
            ),
            saving=Saving(high // 2, high, high, claims, "modeled"),
            evidence=(
                Table(
                    "Host collectives",
                    (
                        Column("count", "Count", "count"),
                        Column("size_bytes", "Bytes", "bytes"),
                        Column("duration_ns", "Duration", "ns"),
                        Column("idle_ns", "Device idle", "ns"),
                        Column("link_ns", "Needed on the device's link", "ns"),
                    ),
                    (
                        (
                            int(on_host.sum()),
                            int(sizes.sum()) if (sizes >= 0).all() else None,
                            int(collectives.duration_ns[on_host].sum()),
                            idle_ns,
                            on_link_ns or None,
                        ),
                    ),
                ),
                costliest(
                    "Host collectives with the longest idle time",
                    signals.worker,
                    rows,
                    inside_ns,
                ),
            ),
            remedies=advise("device-collectives"),
        )


_REDUCING = frozenset({"all-reduce", "reduce-scatter"})


class FullPrecisionGradients(Rule):
    """Gradients are reduced in 32 bits although the model computes in 16."""

    id = "full-precision-gradients"
    title = "Send gradients in 16 bits"
    refines = "exposed-communication"
    needs = (Need.WORK, Need.COLLECTIVES, Need.KERNEL_PRECISION)
    is_preview = False

    minimum_16_bit_share = 0.5
    """A program that computes less in 16 bits is not a 16-bit program."""
    minimum_share = Limit(0.01, "share", "A smaller gain is not worth the numerical risk.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        shares = signals.compute_shares
        narrow = 0.0 if shares is None else shares.get(Precision.BITS_16, 0.0)
        if narrow < self.minimum_16_bit_share or workload(signals).has(Part.FORWARD_ONLY):
            return
        collectives = collectives_of(signals)
        chosen = collectives.of(*_REDUCING) & collectives.is_32_bit
        chosen &= has_role(signals, Role.GRADIENTS, Role.SHARDS, Role.UNKNOWN)
        saving = faster_collectives(signals, chosen, time_without_waiting(signals) / 2)
        if self.is_minor(saving.high_ns, signals):
            return
        exposed_ns = int(collectives.exposed_ns[chosen].sum())
        yield Finding(
            instance=count_per_step(int(chosen.sum()), "reduction", signals),
            summary=(
                f"{per_step(exposed_ns, signals)} goes into sending gradients in 32 bits, although"
                f" {format_share(narrow)} of compute time is in 16 bits."
            ),
            saving=replace(saving, low_ns=0),
            evidence=(
                collective_totals("32-bit reductions", signals, {"": chosen}, has_bytes=True),
                most_exposed("Most exposed reductions", signals, chosen),
            ),
            remedies=advise("narrow-gradients", "narrow-tensors"),
        )
