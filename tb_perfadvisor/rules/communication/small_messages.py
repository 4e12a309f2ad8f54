"""Many small collectives where a few large ones would do."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import Remedy, advise
from tb_perfadvisor.rules.amounts import count_per_step, in_analyzed, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.collectives import latency_and_bandwidth, most_exposed
from tb_perfadvisor.rules.finding import Cell, Column, Evidence, Finding, Table
from tb_perfadvisor.rules.savings.faster_collectives import faster_collectives, time_without_waiting
from tb_perfadvisor.signals import Need, Signals, collectives_of
from tb_perfadvisor.signals.core.collectives import Mask
from tb_perfadvisor.signals.ranks.collective_roles import Role
from tb_perfadvisor.signals.ranks.exposed_communication import has_role
from tb_perfadvisor.trace.integer_groups import group_rows, places_by_value
from tb_perfadvisor.units import format_duration

_USUAL_BUCKET_MB = 25
"""The default of DistributedDataParallel."""


class SmallMessages(Rule):
    """Collectives are so small that starting them takes longer than sending the data.

    What it finds
    -------------
    Many small, exposed collectives of one kind in each step. Those of tensor-parallel, pipeline and
    expert-parallel layers do not count: each result is needed before the next message is known.

    Why it matters
    --------------
    Every collective costs a fixed latency, some 10 to 50 microseconds within a node and more
    between nodes, however few bytes it carries. Hundreds of small collectives cost milliseconds
    that a single large one does not.

    How it is measured
    ------------------
    A message of up to 256 KiB is small; where sizes were not recorded, a collective of up to 50
    microseconds. High is their exposed time, minus one message per step for each operation and
    process group. If all ranks were profiled, waiting is subtracted first, and expected equals high
    or the result of replaying the steps. Where ranks are missing, nothing is
    estimated.

    When to ignore
    --------------
    When each result is needed before the next message can be computed.

    How to verify
    -------------
    The number of collectives per step falls, and so does their total time.

    References:
    ----------
    Hockney's model, time = latency + bytes / bandwidth (Hockney, "The communication challenge for
    MPP", 1994); Li et al., "PyTorch Distributed" (VLDB 2020), section 3.2.2 on buckets.
    """

    id = "small-messages"
    title = "Combine small collectives into larger ones"
    category = "communication"
    refines = "exposed-communication"
    needs = (Need.WORK, Need.COLLECTIVES)
    is_preview = False

    small_bytes = Limit(
        262_144, "bytes", "Below 256 KiB, the time of a collective hardly depends on its size."
    )
    small_ns = Limit(
        50_000, "ns", "The latency of a collective within a node is below 50 microseconds."
    )
    minimum_count = Limit(
        20, "count", "A few gradient buckets and a few metrics add up to this many per step."
    )
    minimum_share = Limit(0.005, "share", "A smaller gain is not worth the code.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when the small collectives of a step add up."""
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
    operations = sorted(collectives_of(signals).operation.texts)
    fitted = latency_and_bandwidth(signals, operations)
    longest = most_exposed("Most exposed small collectives", signals, chosen)
    return (table, *fitted, longest)
