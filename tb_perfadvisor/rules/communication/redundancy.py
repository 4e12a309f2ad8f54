"""What ranks exchange or compute although they need not."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step, share_of_each
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tables import events_by_name
from tb_perfadvisor.rules.finding import Column, Finding, Saving, Table, costliest
from tb_perfadvisor.rules.savings import (
    faster_collectives,
    faster_device_work,
    time_without_waiting,
)
from tb_perfadvisor.signals import Cause, Need, Signals, collectives_of
from tb_perfadvisor.signals.core.collectives import exposed_part
from tb_perfadvisor.signals.host.buffer_broadcasts import buffer_broadcasts
from tb_perfadvisor.signals.host.idle import IdleOwner, idle_owners
from tb_perfadvisor.signals.ranks.collective_roles import Role
from tb_perfadvisor.signals.ranks.exposed_communication import (
    ReplicatedUpdates,
    copies_of_gradients,
    has_role,
    replicated_updates,
)
from tb_perfadvisor.signals.steps.step_variation import micro_batches
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct, is_in, places_by_value
from tb_perfadvisor.trace.intervals import intersect, join, overlap_ns, total_ns
from tb_perfadvisor.trace.tables import Int32
from tb_perfadvisor.units import format_duration
from tb_perfadvisor.whatif import Remove, Shorten

_FORWARD = "DataParallel.forward"
# Autograd functions in torch/nn/parallel/_functions.py; their backward nodes count as well.
_MOVING = ("Broadcast", "Scatter", "Gather", "ReduceAddCoalesced")


class DataParallel(Rule):
    """`nn.DataParallel` moves the model and the batch in every step, from one process."""

    id = "data-parallel"
    title = "Replace nn.DataParallel with one process per device"
    needs = (Need.WORK, Need.DEVICE_EVENTS, Need.HOST_EVENTS, Need.STEPS, Need.PYTORCH)

    minimum_share = Limit(0.02, "share", "A smaller gain does not justify a new launch script.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        trace, attribution = signals.trace, signals.attribution
        if signals.device.used < 2 or len(_named(trace, (_FORWARD,))) == 0:
            return
        rows = _named(trace, _MOVING)
        events = trace.events
        moving = events.spans(rows)
        lost = attribution.of(
            Cause.COPIES,
            Cause.LAUNCHING,
            Cause.FRAMEWORK,
            Cause.PYTHON,
            Cause.SYNCHRONIZATION,
            Cause.UNEXPLAINED,
        )
        claims = intersect(lost, moving)
        lost_ns = total_ns(claims)
        if self.is_minor(lost_ns, signals):
            return
        inside_ns = overlap_ns(claims, events.start_ns[rows], events.end_ns[rows])
        names = events.name[rows]
        yield Finding(
            instance=f"one process drives {signals.device.used} devices",
            summary=(
                f"nn.DataParallel drives {signals.device.used} devices from one process: the"
                f" busiest one loses {per_step(lost_ns, signals)} while tensors are moved."
            ),
            saving=Saving(lost_ns // 2, lost_ns, lost_ns, claims, "measured"),
            evidence=(
                Table(
                    "Operators that move tensors",
                    (
                        Column("name", "Operator"),
                        Column("count", "Count", "count"),
                        Column("lost_ns", "Device idle or copying", "ns"),
                    ),
                    tuple(
                        (
                            trace.strings[name],
                            int((names == name).sum()),
                            int(inside_ns[names == name].sum()),
                        )
                        for name in distinct(names).tolist()
                    ),
                ),
                costliest("Costliest of these operators", signals.worker, rows, inside_ns),
            ),
            remedies=advise("process-per-device", "distributed-sampler"),
        )


def _named(trace: Trace, wanted: tuple[str, ...]) -> Int32:
    """Host events with these names, or of the autograd nodes that undo them."""
    rows = trace.rows(EventKind.OPERATOR, EventKind.ANNOTATION)
    names = trace.events.name[rows]
    matching = [
        name
        for name in distinct(names).tolist()
        if trace.strings[name].removeprefix("autograd::engine::evaluate_function: ")
        in {*wanted, *(f"{text}Backward" for text in wanted)}
    ]
    return rows[is_in(names, matching)]


class DdpBufferBroadcast(Rule):
    """DistributedDataParallel broadcasts the buffers of rank 0 before each forward pass."""

    id = "ddp-buffer-broadcast"
    title = "Do not broadcast buffers in every forward pass"
    needs = (Need.PYTORCH, Need.DEVICE_EVENTS, Need.HOST_EVENTS)
    is_preview = False

    minimum_share = Limit(0.01, "share", "A few buffers take less, and changing them needs care.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        broadcasts = buffer_broadcasts(signals)
        if not broadcasts.forwards:
            return
        trace, collectives = signals.trace, collectives_of(signals)
        idle = idle_owners(signals)[IdleOwner.BUFFER_BROADCAST]
        chosen = has_role(signals, Role.BUFFERS)
        rows = collectives.row[chosen]
        communication = signals.attribution.intervals[Cause.COMMUNICATION]
        claims = join(idle, exposed_part(trace, rows, communication))
        high_ns, idle_ns = total_ns(claims), total_ns(idle)
        if self.is_minor(high_ns, signals):
            return
        transfer_ns = np.minimum(collectives.transfer_ns, collectives.exposed_ns)[chosen]
        sent_ns = int(transfer_ns.sum()) if (transfer_ns >= 0).all() else 0
        operators = broadcasts.operators
        host_ns = format_duration(total_ns(broadcasts.spans) / broadcasts.forwards)
        yield Finding(
            instance=f"the host needs {host_ns} each time",
            summary=(
                f"The device waits {per_step(high_ns, signals)} while DistributedDataParallel"
                f" broadcasts the model's buffers; the host needs {host_ns} for that in each"
                " forward pass."
            ),
            saving=Saving(
                idle_ns,
                min(idle_ns + sent_ns, high_ns),
                high_ns,
                claims,
                "measured",
                (Remove(broadcasts.spans), Shorten(rows, np.zeros(len(rows), dtype=np.int64))),
            ),
            evidence=(
                events_by_name(
                    "What the host does for the buffers",
                    "Operator",
                    trace,
                    operators,
                    ((Column("host_ns", "Time", "ns"), trace.events.duration_ns[operators]),),
                ),
                costliest(
                    "Longest of these operators",
                    signals.worker,
                    operators,
                    trace.events.duration_ns[operators],
                ),
            ),
            remedies=advise("no-buffer-broadcast"),
        )


class GradientCopies(Rule):
    """DistributedDataParallel copies each gradient out of the bucket in which it was reduced."""

    id = "gradient-copies"
    title = "Let gradients be views of the buckets that are reduced"
    needs = (Need.DEVICE_EVENTS, Need.COLLECTIVES, Need.LAUNCH_LINKS)
    is_preview = False

    minimum_share = Limit(
        0.01, "share", "The fix is a single argument, so that 1 % of the step is worth it."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        rows = signals.steps.own(copies_of_gradients(signals))
        duration = signals.trace.events.duration_ns[rows]
        saving = faster_device_work(
            signals, rows, duration * 0, basis="measured", most_then_ns=duration // 2
        )
        if self.is_minor(saving.claimed_ns, signals):
            return
        count = count_per_step(len(rows), "copy", signals, plural="copies")
        yield Finding(
            instance=count,
            summary=(
                f"{per_step(saving.claimed_ns, signals)} goes into copies within the device that"
                f" follow the last all-reduce, one for each gradient ({count})."
            ),
            saving=saving,
            evidence=(costliest("Longest copies", signals.worker, rows, duration),),
            remedies=advise("gradient-views"),
        )


class RedundantAllReduce(Rule):
    """Gradients are reduced once per micro-batch instead of once per optimizer step."""

    id = "redundant-all-reduce"
    title = "Reduce gradients once per optimizer step"
    refines = "exposed-communication"
    needs = (Need.WORK, Need.COLLECTIVES, Need.STEPS, Need.HOST_EVENTS)
    is_preview = False

    minimum_share = Limit(0.01, "share", "A smaller gain does not justify a second code path.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        rounds = micro_batches(signals)
        collectives, steps = collectives_of(signals), signals.steps
        all_reduces = collectives.of("all-reduce")
        all_reduces &= has_role(signals, Role.GRADIENTS, Role.UNKNOWN)
        if rounds < 2 or not all_reduces.any():
            return
        step = steps.owner[collectives.row]
        is_redundant = np.zeros(len(collectives), dtype=bool)
        candidates = np.flatnonzero(all_reduces)
        for _, places in places_by_value(step[candidates]):
            in_step = candidates[places]
            if len(in_step) % rounds:
                return  # rounds differ, so something besides gradients is reduced
            is_redundant[in_step[: len(in_step) - len(in_step) // rounds]] = True
        saving = faster_collectives(signals, is_redundant, np.zeros(len(collectives)))
        if self.is_minor(saving.high_ns, signals):
            return
        count = int(all_reduces.sum()) // steps.count
        redundant = int(is_redundant.sum()) // steps.count
        redundant_ns = int(time_without_waiting(signals)[is_redundant].sum())
        yield Finding(
            instance=f"{rounds} times now",
            summary=(
                f"Gradients are reduced {rounds} times per optimizer step:"
                f" {redundant:,} of {count:,} all-reduces per step are redundant, because the next"
                " one overwrites their result. They cost up to"
                f" {per_step(saving.high_ns, signals)}."
            ),
            saving=saving,
            evidence=(
                Table(
                    "All-reduces per optimizer step",
                    (
                        Column("rounds", "Forward passes", "count"),
                        Column("count", "All-reduces", "count"),
                        Column("needed", "Needed", "count"),
                        Column("taken_ns", "Redundant time per step", "ns"),
                    ),
                    ((rounds, count, count // rounds, redundant_ns // steps.count),),
                ),
                costliest(
                    "Longest redundant all-reduces",
                    signals.worker,
                    collectives.row[is_redundant],
                    collectives.duration_ns[is_redundant],
                ),
            ),
            remedies=advise("fewer-reductions"),
        )


class ReplicatedOptimizer(Rule):
    """Every data-parallel rank updates all parameters."""

    id = "replicated-optimizer"
    title = "Let each rank update only a share of the parameters"
    needs = (Need.WORK, Need.COLLECTIVES, Need.STEPS, Need.PYTORCH)

    minimum_share = Limit(0.03, "share", "Sharding is a larger change than an argument.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        updates = replicated_updates(signals)
        if updates is None:
            return
        saving = _saving(updates)
        if self.is_minor(saving.expected_ns, signals):
            return
        compute_ns = total_ns(updates.compute)
        yield Finding(
            instance=f"each of {updates.ranks} ranks updates all of them for"
            f" {share_of_each(compute_ns, signals)}",
            summary=(
                f"{per_step(compute_ns, signals)} is the optimizer's compute, the same on each of"
                f" {updates.ranks} ranks. Sharded, it would be"
                f" {per_step(compute_ns // updates.ranks, signals)}, plus the gathering of updated"
                " parameters."
            ),
            saving=saving,
            evidence=(_parts(signals, updates),),
            remedies=advise("sharded-updates"),
        )


def _saving(updates: ReplicatedUpdates) -> Saving:
    compute_ns = total_ns(updates.compute)
    gain_ns = compute_ns - compute_ns // updates.ranks
    return Saving(
        max(gain_ns - updates.all_reduce_ns, 0),
        max(gain_ns - updates.all_reduce_ns // 2, 0),
        gain_ns,
        updates.compute,
        "modeled",
    )


def _parts(signals: Signals, updates: ReplicatedUpdates) -> Table:
    steps, compute_ns = signals.steps.count, total_ns(updates.compute)
    return Table(
        "The optimizer, per step",
        (Column("what", "What"), Column("time_ns", "Time", "ns")),
        (
            ("compute, on every rank", compute_ns // steps),
            (
                f"compute, sharded across {updates.ranks} ranks",
                compute_ns // updates.ranks // steps,
            ),
            ("gathering what was updated, about", updates.all_reduce_ns // 2 // steps),
        ),
    )
