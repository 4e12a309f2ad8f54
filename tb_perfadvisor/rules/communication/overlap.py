"""Communication that computes nothing meanwhile."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_perfadvisor.advice import Remedy, advise
from tb_perfadvisor.rules.amounts import (
    count_per_step,
    per_step,
    share_of_each,
    share_of_window,
    time_of_each,
)
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.collectives import (
    collective_totals,
    collectives_by_operation,
    most_exposed,
    on_waiting,
)
from tb_perfadvisor.rules.finding import Column, Finding, Saving, Table
from tb_perfadvisor.rules.savings import (
    faster_collectives,
    faster_device_work,
    time_without_waiting,
)
from tb_perfadvisor.signals import Cause, Need, Signals, collectives_of
from tb_perfadvisor.signals.core.collectives import Collectives, Mask, exposed_part
from tb_perfadvisor.signals.host.waits import awaited_collectives
from tb_perfadvisor.signals.program.devices import (
    early_reductions,
    repeated_work,
    share_if_batch_is_split,
)
from tb_perfadvisor.signals.ranks.collective_costs import (
    launched_ns,
    longest_transfer_ns,
    slow_messages,
    step_at,
)
from tb_perfadvisor.signals.ranks.collective_roles import Role
from tb_perfadvisor.signals.ranks.exposed_communication import (
    GOOD_PART,
    DominantCollective,
    dominant_collective,
    exposed_by_role,
    exposed_once_ns,
    free_compute_ns,
    gradient_messages,
    has_role,
    needed_transfer_ns,
    transfer_share,
)
from tb_perfadvisor.signals.tpu.xla_operations import executions, has_tiled_layouts
from tb_perfadvisor.signals.workload.workload import Part, workload
from tb_perfadvisor.trace.integer_groups import group_rows
from tb_perfadvisor.trace.intervals import Intervals, join, total_ns
from tb_perfadvisor.trace.names import short_annotation
from tb_perfadvisor.trace.tables import Int64
from tb_perfadvisor.units import format_duration, format_share
from tb_perfadvisor.whatif import Shorten

_WORTH_A_SENTENCE = 0.01
_WORTH_ANOTHER_SPLIT = 0.5
"""Of the bytes that are exchanged; from here on, overlap saves as much."""
_MANY_BYTES = 400 * 2**20
"""From here on, buckets of 100 MB are four or more, of which all but the last can overlap."""
_LARGE_BUCKET = 50 * 2**20
"""Messages of this size are large enough: twice DDP's default."""
OVERLAPPED: Final[dict[Role, tuple[str, ...]]] = {
    Role.GRADIENTS: ("overlapped-gradients", "fewer-reductions", "larger-batch-per-rank"),
    Role.SHARDS: ("prefetched-shards", "keep-shards", "larger-batch-per-rank"),
    Role.BUFFERS: ("no-buffer-broadcast",),
    Role.TENSOR: ("overlapped-tensor-parallelism", "fewer-tensor-parallel-ranks"),
    Role.CONTEXT: ("context-exchange",),
    Role.PIPELINE: ("shorter-bubble",),
    Role.EXPERTS: ("overlapped-experts",),
    Role.EMBEDDINGS: ("narrow-embeddings", "even-embeddings"),
    Role.STATISTICS: ("own-statistics",),
    Role.UNKNOWN: ("async-collective", "xla-overlap", "larger-batch-per-rank"),
}
"""What makes exposed collectives cost less, by what they are for."""


class ExposedCommunication(Rule):
    """Collectives run while nothing is computed."""

    id = "exposed-communication"
    title = "Hide communication behind compute"
    reads_sums = True
    needs = (Need.WORK, Need.COLLECTIVES)
    is_preview = False

    minimum_share = Limit(
        0.03, "share", "The last gradient bucket of a step has no compute left to overlap with."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
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
        takes = f"exposed communication takes {share_of_each(exposed_ns, signals)}"
        reason, better = "", _better_split(signals)
        if better is not None:
            title = f"{better.title}: {takes}"
            then = f"{format_share(better.share)} of the bytes" if better.share else "nothing more"
            reason = f" {better.reason}: {then}."
        in_words = per_step if title else time_of_each
        yield Finding(
            instance=takes,
            summary=(
                f"{in_words(exposed_ns, signals)} is communication that no compute overlaps"
                f" ({count_per_step(collectives.count, 'collective', signals)}{_purpose(signals)});"
                f" {on_waiting(signals, split, wire_ns)}{longest}{_awaited(signals)}"
                f"{reason}"
            ),
            title=title,
            saving=_saving(signals, communicating, split, wire_ns, better),
            evidence=(
                collectives_by_operation(signals),
                *_by_role(signals),
                most_exposed(
                    "Most exposed collectives", signals, np.ones(len(collectives), dtype=bool)
                ),
            ),
            remedies=_remedies(signals, _changes(signals, split, better)),
        )


def _purpose(signals: Signals) -> str:
    """What most of the exposed time is for, in words."""
    costliest, *_ = exposed_by_role(signals)
    return "" if costliest.role is Role.UNKNOWN else f", most of it for {costliest.role.value}"


def _is_link(signals: Signals, split: float | None) -> bool:
    """Whether the link is the reason, as far as the ranks tell, so that overlap comes second."""
    if split is not None:
        hidden_ns, faster_ns = _saved_ns(signals, split)
        return faster_ns > hidden_ns
    slow = slow_messages(signals)
    return slow is not None and slow.points_to_link


def _longest(signals: Signals, split: float | None) -> tuple[str, str]:
    """The collective that takes most of the exposed time by itself: a title, and a sentence."""
    longest = dominant_collective(signals)
    if longest is None:
        return "", ""
    is_link = _is_link(signals, split)
    where = f" in {short_annotation(longest.annotation)}" if longest.annotation else ""
    taken = format_duration(longest.exposed_ns / signals.steps.count)
    share = share_of_each(longest.exposed_ns, signals)
    what = f"{longest.operation}{where}"
    advice = f"Find out why the {what} is slow" if is_link else f"Shrink or hide the {what}"
    return (
        f"{advice}: one {longest.operation} takes {share}",
        f" One {longest.operation}{where} takes {taken} of it.",
    )


def _changes(signals: Signals, split: float | None, better: _Split | None) -> tuple[str, ...]:
    """What makes the collectives cost less, by what they are for."""
    uses = exposed_by_role(signals)
    known = [use for use in uses if use.role is not Role.UNKNOWN]
    # Collectives that were launched before the recording began are most likely like the others.
    uses = tuple(use for use in uses if use in known or use.is_launched or not known)
    total_ns = sum(use.exposed_ns for use in uses)
    roles = [use.role for use in uses if use.exposed_ns >= GOOD_PART * total_ns]
    first = ["link-path", "link-test"] if _is_link(signals, split) else []
    first += ["sharded-logits"] if _gathered_logits(signals) is not None else []
    sent = gradient_messages(signals)
    is_split = sent is not None and _MANY_BYTES <= sent.size_bytes <= sent.count * _LARGE_BUCKET
    last = ["larger-buckets"] if is_split else []
    if better is not None:
        first.insert(0, better.change)
    elif has_tiled_layouts(signals):
        last.append("tpu-latency-hiding")
    overlapped = (change for role in roles for change in OVERLAPPED[role])
    return tuple(dict.fromkeys((*first, *overlapped, *last)))


class _Split(NamedTuple):
    """Another split of a program over its devices, which exchanges much less."""

    change: str
    title: str
    reason: str
    share: float
    """What is exchanged then, relative to now."""
    exposed_ns: int
    """The exposed time of the collectives that it changes."""

    @property
    def saved_ns(self) -> int:
        """The exposed time that is left out."""
        return round((1 - self.share) * self.exposed_ns)


def _better_split(signals: Signals) -> _Split | None:
    """The split that saves most, if any exchanges much less."""
    splits = (*_batch_instead(signals), *_columns_first(signals))
    better = [split for split in splits if split.share < _WORTH_ANOTHER_SPLIT]
    return max(better, key=lambda split: split.saved_ns, default=None)


def _batch_instead(signals: Signals) -> Iterable[_Split]:
    """The split of the batch in training; the caches of a server are split for other reasons."""
    share = share_if_batch_is_split(signals)
    if share is not None and workload(signals).has(Part.TRAINING):
        yield _Split(
            "batch-over-devices",
            "Split the batch instead of the weights",
            "The weights are split over the devices, and each has the whole batch. Split by the"
            " batch, they would exchange gradients alone",
            share,
            total_ns(signals.attribution.intervals[Cause.COMMUNICATION]),
        )


def _columns_first(signals: Signals) -> Iterable[_Split]:
    """The split by columns, if devices sum up a larger array than they need to."""
    found = early_reductions(signals)
    if not found:
        return
    text, hlo = signals.trace.text, signals.trace.hlo
    reduced = {one.running.program.kernel_of(one.reduced) for one in found}
    ops = signals.trace.operations(collectives_of(signals).row).tolist()
    chosen = np.array([op >= 0 and text(int(hlo.name[op])) in reduced for op in ops], dtype=bool)
    largest = max(found, key=lambda one: one.running.program.shape_of(one.reduced).padded_bytes)
    program = largest.running.program
    yield _Split(
        "columns-first",
        "Split the weights by their columns first",
        f"{program.shape_of(largest.reduced)} is summed up over {program.devices} devices between"
        " two products. If the first weights were split by their columns, they would only sum up"
        " what follows the second product",
        largest.share,
        int(exposed_once_ns(signals, chosen).sum()),
    )


def _gathered_logits(signals: Signals) -> DominantCollective | None:
    """The all-gather among tensor-parallel layers that takes most of the exposed time, if any."""
    longest, (costliest, *_) = dominant_collective(signals), exposed_by_role(signals)
    is_gather = longest is not None and longest.operation == "all-gather"
    return longest if is_gather and costliest.role is Role.TENSOR else None


def _remedies(signals: Signals, changes: tuple[str, ...]) -> tuple[Remedy, ...]:
    """The remedies, with numbers of ranks that the program's devices are enough for."""
    sizes = collectives_of(signals).group_size[has_role(signals, Role.TENSOR)]
    world = signals.trace.source.world_size
    if "fewer-tensor-parallel-ranks" not in changes or world is None or sizes.max(initial=0) < 2:
        return advise(*changes)
    ranks = int(sizes.max()) // 2
    return advise(*changes, ranks=ranks, replicas=world // ranks)


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
    signals: Signals,
    communicating: Intervals,
    split: float | None,
    wire_ns: int,
    better: _Split | None,
) -> Saving:
    exposed_ns, awaited = total_ns(communicating), awaited_collectives(signals)
    claims = join(communicating, awaited)
    if better is not None:
        saved_ns = better.saved_ns
        saving = Saving(saved_ns // 2, saved_ns, exposed_ns, claims, "modeled")
        is_of_batch = better.change == "batch-over-devices"
        return _with_repeated_work(signals, saving) if is_of_batch else saving
    if split is None:
        # The bytes need the link at least for this long. The rest may be waiting.
        unpriced_ns = total_ns(claims) - wire_ns
        hidden_ns = min(wire_ns, free_compute_ns(signals))
        most_ns = total_ns(claims)
        return Saving(hidden_ns, hidden_ns, most_ns, claims, "heuristic", unpriced_ns=unpriced_ns)
    transfer_ns = round(exposed_ns * split)
    saved_ns = max(_saved_ns(signals, split))
    longest = _gathered_logits(signals)
    if longest is not None:
        saved_ns = round(split * longest.exposed_ns)
    shorter = _hidden(signals, split * saved_ns / max(transfer_ns, 1))
    # Without compute that is free to hide it, only sending less helps, which no profile prices.
    return Saving(
        0,
        saved_ns,
        transfer_ns + total_ns(awaited),
        claims,
        "measured",
        (shorter,),
        is_unknown=not saved_ns,
    )


def _with_repeated_work(signals: Signals, saving: Saving) -> Saving:
    """Add what all devices compute alike: each then does it for its part of the batch.

    Of operations that compute other arrays, too, nothing tells what these arrays take.
    """
    found = repeated_work(signals)
    rows = executions(signals, [operation for operation, _ in found])
    remains = np.ones((2, len(signals.trace.hlo.name)))
    stays = 1 / max(collectives_of(signals).group_size.max(initial=1), 1)
    for operation, share in found:
        best = 1 - share * (1 - stays)
        remains[:, operation.op] = best if share == 1 else 1.0, best
    now_ns = signals.trace.events.duration_ns[rows]
    then_ns, best_ns = (remains[:, signals.trace.operations(rows)] * now_ns).astype(np.int64)
    more = faster_device_work(signals, rows, then_ns, basis="modeled", least_then_ns=best_ns)
    return replace(
        saving,
        low_ns=saving.low_ns + more.expected_ns // 2,
        expected_ns=saving.expected_ns + more.expected_ns,
        high_ns=saving.high_ns + more.high_ns,
        claims=join(saving.claims, more.claims),
    )


def _saved_ns(signals: Signals, split: float) -> tuple[int, int]:
    """What overlap alone and a faster link alone would save of the exposed transfer."""
    transfer_ns = round(split * total_ns(signals.attribution.intervals[Cause.COMMUNICATION]))
    wire_ns = needed_transfer_ns(signals)
    faster_ns = max(transfer_ns - wire_ns, 0) if wire_ns else 0
    return min(transfer_ns, free_compute_ns(signals)), faster_ns


def _hidden(signals: Signals, hidden_share: float) -> Shorten:
    """Shorten every collective by the exposed part of its transfer."""
    collectives = collectives_of(signals)
    exposed_ns = (collectives.exposed_ns * hidden_share).astype(np.int64)
    return Shorten(collectives.row, collectives.duration_ns - exposed_ns)


_MOST = 0.5
"""Of the exposed time: what takes most of it decides what helps."""


class LateAllGather(Rule):
    """All-gathers of sharded parameters hold up the layers that need them."""

    id = "late-all-gather"
    title = "Prefetch sharded parameters one layer ahead"
    refines = "exposed-communication"
    needs = (Need.WORK, Need.DEVICE_EVENTS, Need.COLLECTIVES, Need.STEPS)

    minimum_share = Limit(0.02, "share", "The first gathers of a step are always exposed.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        collectives = collectives_of(signals)
        gathers = collectives.of("all-gather") & _of_shards(signals)
        if not gathers.any():
            return
        chosen = gathers.copy()
        chosen[_first_of_steps(signals, np.flatnonzero(gathers))] = False
        overlapped_ns = np.maximum(time_without_waiting(signals) - collectives.exposed_ns, 0)
        saving = faster_collectives(signals, chosen, overlapped_ns)
        if self.is_minor(saving.high_ns, signals):
            return
        exposed_ns = int(collectives.exposed_ns[chosen].sum())
        yield Finding(
            instance=count_per_step(int(gathers.sum()), "all-gather", signals),
            summary=(
                f"Layers wait {per_step(exposed_ns, signals)} for their parameters"
                f" ({count_per_step(int(gathers.sum()), 'all-gather', signals)})."
            ),
            saving=saving,
            evidence=(
                collective_totals("All-gathers in the analyzed steps", signals, {"": gathers}),
                most_exposed("Most exposed all-gathers", signals, chosen),
            ),
            remedies=advise("prefetched-shards", "keep-shards"),
        )


def _of_shards(signals: Signals) -> Mask:
    """Which collectives are for sharded parameters; shape (n,)."""
    collectives = collectives_of(signals)
    if signals.trace.source.framework == "pytorch":
        return has_role(signals, Role.SHARDS)
    return np.full(len(collectives), collectives.of("reduce-scatter").any())


def _first_of_steps(signals: Signals, gathers: np.ndarray) -> np.ndarray:
    """Indices of the collectives that are the first all-gather of their step."""
    row = collectives_of(signals).row[gathers]
    step = signals.steps.owner[row]
    _, first = np.unique(step, return_index=True)
    return gathers[first]


_WITH_BUCKETS = (Part.DDP, Part.DEEPSPEED, Part.MEGATRON)
"""Parts that send gradients in buckets."""
_SMALL_MB = 10


class LateGradientBucket(Rule):
    """The last all-reduce of each step runs after the backward pass and is fully exposed."""

    id = "late-gradient-bucket"
    title = "Shrink the last gradient bucket"
    refines = "exposed-communication"
    needs = (Need.PYTORCH, Need.DEVICE_EVENTS, Need.COLLECTIVES, Need.STEPS)
    is_preview = False

    minimum_share = Limit(
        0.02, "share", "Some tail is unavoidable: the gradients that are computed last."
    )
    minimum_of_exposed = 0.5
    """If the others are exposed as well, the last one is not the problem."""
    remaining_share = 0.1
    """A bucket of 2.5 MB instead of 25 MB is still sent last."""

    def check(self, signals: Signals) -> Iterable[Finding]:
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

    `size_bytes` are those of the all-reduces of gradients; negative if unknown.
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


_BETWEEN_STAGES = ("send", "recv")


class PipelineBubble(Rule):
    """A pipeline stage waits for the stage before or after it."""

    id = "pipeline-bubble"
    title = "Shrink the pipeline bubble"
    refines = "exposed-communication"
    needs = (Need.WORK, Need.COLLECTIVES, Need.STEPS)

    minimum_share = Limit(0.05, "share", "Every pipeline has a bubble of a few percent.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        collectives = collectives_of(signals)
        messages = collectives.of(*_BETWEEN_STAGES) & has_role(signals, Role.PIPELINE)
        communication = signals.attribution.intervals[Cause.COMMUNICATION]
        claims = exposed_part(signals.trace, collectives.row[messages], communication)
        exposed_ns = total_ns(claims)
        if self.is_minor(exposed_ns, signals):
            return
        waiting_ns = min(_waiting_ns(collectives, messages), exposed_ns)
        is_known = not self.is_minor(waiting_ns // 2, signals)
        waiting = (
            f" {per_step(waiting_ns, signals)} is more than the fastest messages need."
            if is_known
            else " All messages take about as long, so how much of that is transfer is unknown."
        )
        yield Finding(
            instance=count_per_step(int(messages.sum()), "message", signals),
            summary=(
                f"This stage spends {per_step(exposed_ns, signals)} on messages to and from its"
                f" neighbors alone ({count_per_step(int(messages.sum()), 'message', signals)})."
                f"{waiting}"
            ),
            saving=Saving(0, waiting_ns // 2, exposed_ns, claims, "heuristic")
            if is_known
            else None,
            severity=None if is_known else "low",
            evidence=(
                collective_totals(
                    "Messages between stages",
                    signals,
                    {
                        name: chosen
                        for name in _BETWEEN_STAGES
                        if (chosen := collectives.of(name)).any()
                    },
                    by=Column("operation", "Operation"),
                ),
                most_exposed("Longest waits", signals, messages),
            ),
            remedies=advise("shorter-bubble"),
        )


def _waiting_ns(collectives: Collectives, messages: NDArray[np.bool_]) -> int:
    """Exposed time of messages beyond their transfer.

    The transfer is known if all ranks were recorded. Otherwise, it takes at most as long as the
    fastest message of the same direction and size.
    """
    duration_ns, known_ns = collectives.duration_ns[messages], collectives.transfer_ns[messages]
    sizes = collectives.size_bytes[messages]
    first, group = group_rows(collectives.operation.code[messages], sizes)
    fastest_ns = np.full(len(first), np.iinfo(np.int64).max)
    np.minimum.at(fastest_ns, group, duration_ns)
    transfer_ns = np.where(known_ns >= 0, known_ns, fastest_ns[group])
    waiting_ns = np.minimum(duration_ns - transfer_ns, collectives.exposed_ns[messages])
    return int(waiting_ns.clip(min=0).sum())
