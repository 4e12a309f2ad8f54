"""The last gradient bucket, which has no compute left to overlap with."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from msgspec.structs import replace

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.collectives import collective_totals, most_exposed
from tb_perfadvisor.rules.finding import Column, Finding
from tb_perfadvisor.rules.savings.faster_collectives import faster_collectives, time_without_waiting
from tb_perfadvisor.signals import Need, Signals, collectives_of
from tb_perfadvisor.signals.ranks.collective_costs import launched_ns, longest_transfer_ns, step_at
from tb_perfadvisor.signals.ranks.collective_roles import Role
from tb_perfadvisor.signals.ranks.exposed_communication import has_role
from tb_perfadvisor.signals.workload.workload import Part, workload
from tb_perfadvisor.trace.tables import Int64

_WITH_BUCKETS = (Part.DDP, Part.DEEPSPEED, Part.MEGATRON)
"""Parts that send gradients in buckets."""
_SMALL_MB = 10


class LateGradientBucket(Rule):
    """The last all-reduce of each step runs after the backward pass and is fully exposed.

    What it finds
    -------------
    Steps whose all-reduces overlap the backward pass except for the last one, which takes a good
    part of the step by itself.

    Why it matters
    --------------
    A bucket can only be sent when its last gradient is ready. The larger the last bucket, the
    longer the optimizer waits for it.

    How it is measured
    ------------------
    The exposed time of each step's last all-reduce of gradients, in programs with several of which
    the others are mostly overlapped. High is that time minus what a tenth of the bucket would take:
    a bucket cannot vanish. Where ranks are missing, no more than twice the time that its bytes need
    on the link counts, if both are known: the rest is waiting, or a slow link. Low is 0 and
    expected is half of high, because each additional bucket adds latency.

    When to ignore
    --------------
    When the model is one large layer: its gradient is one message whatever the bucket size.

    How to verify
    -------------
    The gap between the end of the backward pass and the first optimizer kernel shrinks.

    References:
    ----------
    Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training"
    (VLDB 2020), sections 3.2.2 and 3.2.3.
    """

    id = "late-gradient-bucket"
    title = "Shrink the last gradient bucket"
    category = "communication"
    refines = "exposed-communication"
    needs = (Need.PYTORCH, Need.DEVICE_EVENTS, Need.COLLECTIVES, Need.STEPS)
    is_preview = False

    minimum_share = Limit(
        0.02, "share", "Some tail is unavoidable: the gradients that are computed last."
    )
    minimum_of_exposed = Limit(
        0.5, "share", "If the others are exposed as well, the last one is not the problem."
    )
    remaining_share = Limit(0.1, "share", "A bucket of 2.5 MB instead of 25 MB is still sent last.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when only the last all-reduce of each step is exposed."""
        collectives = collectives_of(signals)
        if not any(map(workload(signals).has, _WITH_BUCKETS)):
            return
        all_reduces = collectives.of("all-reduce") & has_role(signals, Role.GRADIENTS)
        last = _last_of_steps(signals, np.flatnonzero(all_reduces))
        if len(last) == 0 or int(all_reduces.sum()) < 2 * len(last):
            return
        is_last = np.zeros(len(collectives), dtype=bool)
        is_last[last] = True
        tail_ns = int(collectives.exposed_ns[is_last].sum())
        all_ns = int(collectives.exposed_ns[all_reduces].sum())
        if tail_ns < self.minimum_of_exposed * all_ns:
            return
        # Smaller buckets cure neither waiting nor a slow link.
        taken_ns = time_without_waiting(signals)
        transfer_ns = np.minimum(taken_ns, longest_transfer_ns(signals))
        overlapped_ns = np.clip(taken_ns - collectives.exposed_ns, 0, transfer_ns)
        gain_ns = transfer_ns - np.maximum(overlapped_ns, transfer_ns * self.remaining_share)
        most = faster_collectives(signals, is_last, taken_ns - gain_ns, "heuristic")
        # Each additional bucket adds latency, and the order of layers matters: expect half.
        half = faster_collectives(signals, is_last, taken_ns - gain_ns / 2, "heuristic")
        if self.is_minor(most.high_ns, signals):
            return
        yield Finding(
            instance=f"nothing overlaps {per_step(tail_ns, signals)}",
            summary=(
                f"The last all-reduce takes {per_step(tail_ns, signals)} with no compute beside it;"
                f" the others are exposed for {per_step(all_ns - tail_ns, signals)}."
            ),
            saving=replace(half, low_ns=0, high_ns=most.high_ns),
            evidence=(
                collective_totals(
                    "All-reduces in the analyzed steps",
                    signals,
                    {"last of each step": is_last, "all others": all_reduces & ~is_last},
                    by=Column("which", "All-reduce"),
                ),
                most_exposed("Most exposed last all-reduces", signals, is_last),
            ),
            remedies=advise(
                "smaller-buckets", bucket_mb=_smaller_mb(collectives.size_bytes[all_reduces])
            ),
        )


def _smaller_mb(size_bytes: Int64) -> int:
    """Less than half of the usual size, and no more than 10 MB, which is 40 % of DDP's default.

    Args:
        size_bytes: Of the all-reduces of gradients, shape (n,); negative if unknown.
    """
    known = size_bytes[size_bytes >= 0]
    if not len(known):
        return _SMALL_MB
    return min(max(round(0.4 * float(np.median(known)) / 2**20), 1), _SMALL_MB)


def _last_of_steps(signals: Signals, all_reduces: Int64) -> Int64:
    """Indices of the collectives that end last of those that a step launched."""
    events = signals.trace.events
    row = collectives_of(signals).row[all_reduces]
    step = step_at(signals, launched_ns(signals, row))
    all_reduces, row, step = all_reduces[step >= 0], row[step >= 0], step[step >= 0]
    order = np.lexsort((events.end_ns[row], step))
    is_last = np.ones(len(order), dtype=bool)
    is_last[:-1] = step[order][1:] != step[order][:-1]
    return all_reduces[order[is_last]]
