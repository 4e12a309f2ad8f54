"""Communication that no compute overlaps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import (
    count_per_step,
    per_step,
    share_of_each,
    share_of_window,
    time_of_each,
)
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.collectives import (
    collectives_by_operation,
    most_exposed,
    on_waiting,
)
from tb_perfadvisor.rules.finding import Column, Finding, Saving, Table
from tb_perfadvisor.signals import Cause, Need, Signals, collectives_of
from tb_perfadvisor.signals.host.awaited_collectives import awaited_collectives
from tb_perfadvisor.signals.ranks.collective_costs import slow_messages
from tb_perfadvisor.signals.ranks.collective_roles import Role
from tb_perfadvisor.signals.ranks.exposed_communication import (
    GOOD_PART,
    dominant_collective,
    exposed_by_role,
    free_compute_ns,
    gradient_messages,
    needed_transfer_ns,
    sends_wide_sums,
    transfer_share,
)
from tb_perfadvisor.trace.intervals import Intervals, join, total_ns
from tb_perfadvisor.units import format_duration
from tb_perfadvisor.whatif import Shorten

_WORTH_A_SENTENCE = 0.01
_MANY_BYTES = 400 * 2**20
"""From here on, buckets of 100 MB are four or more, of which all but the last can overlap."""
_LARGE_BUCKET = 50 * 2**20
"""Messages of this size are large enough: twice DDP's default."""
OVERLAPPED: Final[dict[Role, tuple[str, ...]]] = {
    Role.GRADIENTS: ("overlapped-gradients", "fewer-reductions", "larger-batch-per-rank"),
    Role.SHARDS: ("prefetched-shards", "keep-shards", "larger-batch-per-rank"),
    Role.BUFFERS: ("no-buffer-broadcast",),
    Role.TENSOR: (
        "custom-all-reduce",
        "overlapped-tensor-parallelism",
        "fewer-tensor-parallel-ranks",
    ),
    Role.CONTEXT: ("context-exchange",),
    Role.PIPELINE: ("shorter-bubble",),
    Role.EXPERTS: ("overlapped-experts",),
    Role.EMBEDDINGS: ("narrow-embeddings", "even-embeddings"),
    Role.STATISTICS: ("own-statistics",),
    Role.UNKNOWN: ("async-collective", "xla-overlap", "nccl-all-reduce", "larger-batch-per-rank"),
}
"""What makes exposed collectives cost less, by what they are for."""


class ExposedCommunication(Rule):
    """Collectives run while nothing is computed.

    What it finds
    -------------
    Collective time that no compute on the device overlaps. If the profiles of all ranks are
    available, it is split into transfer and waiting for other ranks.

    Why it matters
    --------------
    Communication that runs beside compute is nearly free. Exposed communication lengthens the step
    by its full duration, on every rank.

    How it is measured
    ------------------
    Time in which the device communicates and does not compute, and idle time in which a collective
    is launched, but has not begun: only high includes the latter. If all ranks were profiled, the
    shortest duration of a collective over the ranks is its transfer, and the remainder is waiting,
    which overlap does not cure: high is the exposed transfer. Expected is all of it beyond what the
    bytes need on the link, and as much of the rest as the step has compute that overlaps no
    communication yet, or what the steps save when they are replayed without that. Of what XLA
    leaves exposed, no more than half is expected to be hidden.

    If ranks are missing, the split is unknown: transfer is at least the time that the bytes need on
    the link, which is expected, and at most all exposed time, which is high. If the bytes and the
    link explain less than half of it, nothing is estimated: the finding ranks by the exposed time,
    because waiting for other ranks and a slow link are problems of communication. Low is what
    better overlap alone would give: the time that the bytes need, as far as the step has compute
    that overlaps no communication yet. With all ranks it is 0: exposed communication may not be on
    the critical path.

    Messages of a megabyte or more show which of the two it is. If even the fastest of them uses
    little of the link, and those of one size take the same time, the link is slow: late ranks come
    later in one step than in the next. Then the path of the messages comes before overlap.

    When to ignore
    --------------
    When a profiled step contains an unusual collective: a checkpoint, an evaluation, a barrier.

    How to verify
    -------------
    Exposed communication falls while the total time in collectives stays the same, and the step
    becomes shorter by as much.

    References:
    ----------
    Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training"
    (VLDB 2020), section 3.2.
    """

    id = "exposed-communication"
    title = "Hide communication behind compute"
    category = "communication"
    reads_sums = True
    needs = (Need.WORK, Need.COLLECTIVES)
    is_preview = False

    minimum_share = Limit(
        0.03, "share", "The last gradient bucket of a step has no compute left to overlap with."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when a good part of the step only communicates."""
        attribution, collectives = signals.attribution, collectives_of(signals)
        communicating = attribution.intervals[Cause.COMMUNICATION]
        exposed_ns = total_ns(communicating)
        both_ns = exposed_ns + total_ns(awaited_collectives(signals))
        # What earlier steps launched may still communicate in these.
        if not len(collectives) or self.is_minor(both_ns, signals):
            return
        split = transfer_share(signals)
        wire_ns = min(needed_transfer_ns(signals), exposed_ns)
        title, longest = _longest(signals, split)
        in_words = per_step if title else time_of_each
        yield Finding(
            instance=f"{share_of_each(exposed_ns, signals)} waits for it",
            summary=(
                f"{in_words(exposed_ns, signals)} is communication that no compute overlaps"
                f" ({count_per_step(collectives.count, 'collective', signals)}{_purpose(signals)});"
                f" {on_waiting(signals, split, wire_ns)}{longest}{_awaited(signals)}"
            ),
            title=title,
            saving=_saving(signals, communicating, split, wire_ns),
            evidence=(
                collectives_by_operation(signals),
                *_by_role(signals),
                most_exposed(
                    "Most exposed collectives", signals, np.ones(len(collectives), dtype=bool)
                ),
            ),
            remedies=advise(*_changes(signals, split)),
        )


def _purpose(signals: Signals) -> str:
    """What most of the exposed time is for, in words."""
    costliest, *_ = exposed_by_role(signals)
    return "" if costliest.role is Role.UNKNOWN else f", most of it for {costliest.role.value}"


def _is_link(signals: Signals, split: float | None) -> bool:
    """Whether the link is the reason, as far as one rank tells, so that overlap comes second."""
    slow = slow_messages(signals) if split is None else None
    return slow is not None and slow.points_to_link


def _longest(signals: Signals, split: float | None) -> tuple[str, str]:
    """The collective that takes most of the exposed time by itself: a title, and a sentence."""
    longest = dominant_collective(signals)
    if longest is None:
        return "", ""
    is_link = _is_link(signals, split)
    where = f" in {longest.annotation}" if longest.annotation else ""
    taken = format_duration(longest.exposed_ns / signals.steps.count)
    share = share_of_each(longest.exposed_ns, signals)
    what = f"{longest.operation}{where}"
    advice = f"Find out why the {what} is slow" if is_link else f"Shrink or hide the {what}"
    return (
        f"{advice}: it takes {share}",
        f" One {longest.operation}{where} takes {taken} of it.",
    )


def _changes(signals: Signals, split: float | None) -> tuple[str, ...]:
    """What makes the collectives cost less, by what they are for."""
    uses = exposed_by_role(signals)
    known = [use for use in uses if use.role is not Role.UNKNOWN]
    # Collectives that were launched before the recording began are most likely like the others.
    uses = tuple(use for use in uses if use in known or use.is_launched or not known)
    total_ns = sum(use.exposed_ns for use in uses)
    roles = [use.role for use in uses if use.exposed_ns >= GOOD_PART * total_ns]
    longest = dominant_collective(signals)
    is_gather = longest is not None and longest.operation == "all-gather"
    first = ["link-path", "link-test"] if _is_link(signals, split) else []
    first += ["sharded-logits"] if is_gather and roles[:1] == [Role.TENSOR] else []
    sent = gradient_messages(signals)
    is_split = sent is not None and _MANY_BYTES <= sent.size_bytes <= sent.count * _LARGE_BUCKET
    last = ["larger-buckets"] if is_split else []
    if sends_wide_sums(signals):
        first.append("narrow-partial-sums")
    overlapped = (change for role in roles for change in OVERLAPPED[role])
    return tuple(dict.fromkeys((*first, *overlapped, *last)))


def _by_role(signals: Signals) -> tuple[Table, ...]:
    """What the collectives are for, unless that is unknown of all."""
    uses = exposed_by_role(signals)
    if all(use.role is Role.UNKNOWN for use in uses):
        return ()
    return (
        Table(
            "What the collectives are for",
            (
                Column("role", "For"),
                Column("evidence", "Recognized"),
                Column("count", "Count", "count"),
                Column("exposed_ns", "Exposed", "ns"),
            ),
            tuple(
                (use.role.value, use.evidence or None, use.count, use.exposed_ns) for use in uses
            ),
        ),
    )


def _awaited(signals: Signals) -> str:
    """How long the device idles before collectives that are launched, as a sentence."""
    awaited_ns = total_ns(awaited_collectives(signals))
    is_long = share_of_window(awaited_ns, signals) >= _WORTH_A_SENTENCE
    longer = f" For another {per_step(awaited_ns, signals)}, launched collectives have not begun."
    return longer if is_long else ""


def _saving(
    signals: Signals, communicating: Intervals, split: float | None, wire_ns: int
) -> Saving:
    exposed_ns, awaited = total_ns(communicating), awaited_collectives(signals)
    claims = join(communicating, awaited)
    if split is None:
        # The bytes need the link at least for this long. The rest may be waiting.
        unpriced_ns = total_ns(claims) - wire_ns
        low_ns = min(wire_ns, free_compute_ns(signals))
        return Saving(
            low_ns, wire_ns, total_ns(claims), claims, "heuristic", unpriced_ns=unpriced_ns
        )
    transfer_ns = round(exposed_ns * split)
    # A transfer at the speed of the link is only hidden. A slower one may also get faster.
    needed_ns = min(wire_ns, transfer_ns)
    saved_ns = transfer_ns - needed_ns + min(needed_ns, free_compute_ns(signals))
    shorter = _hidden(signals, split * saved_ns / max(transfer_ns, 1))
    return Saving(0, saved_ns, transfer_ns + total_ns(awaited), claims, "measured", (shorter,))


def _hidden(signals: Signals, hidden_share: float) -> Shorten:
    """Shorten every collective by the exposed part of its transfer."""
    collectives = collectives_of(signals)
    exposed_ns = (collectives.exposed_ns * hidden_share).astype(np.int64)
    return Shorten(collectives.row, collectives.duration_ns - exposed_ns)
