"""Communication that nothing hides, shards that are gathered, and updates that all ranks repeat.

FSDP2 annotates what it does with the module (torch/distributed/fsdp/_fully_shard/
_fsdp_param_group.py): `FSDP::all_gather (layers.1)` inside `FSDP::pre_forward (layers.1)`, or
inside that of another module if the program asks for a prefetch.

With the optimizer sharded over n ranks, each updates one n-th of the parameters and gathers the
rest. A reduce-scatter and an all-gather send what the all-reduce of the gradients sent before
(Rajbhandari et al., "ZeRO", section 7.1), but the all-gather is not part of the backward pass.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.core.causes import COMPUTE, Cause
from tb_perfadvisor.signals.core.collectives import Mask
from tb_perfadvisor.signals.core.placement import innermost_marked
from tb_perfadvisor.signals.host.optimizer_loops import host_updates, launched_in, optimizer_loop
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.program.graph import running_programs
from tb_perfadvisor.signals.ranks.collective_costs import link_of_group, step_messages, wire_bytes
from tb_perfadvisor.signals.ranks.collective_roles import CollectiveRoles, Role, collective_roles
from tb_perfadvisor.signals.ranks.ranks import collectives_of
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import CopyDirection, EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.intervals import Intervals, contains, intersect, overlap_once_ns
from tb_perfadvisor.trace.tables import Int32, Int64
from tb_perfadvisor.units import NS_PER_S


@memoized
def window_roles(signals: Signals) -> CollectiveRoles:
    """What each collective of the used window is for, by row of `collectives_of`."""
    roles = collective_roles(signals)
    slot = np.searchsorted(signals.trace.collectives.row, collectives_of(signals).row)
    return CollectiveRoles(roles.role[slot], roles.evidence[slot], roles.texts)


def has_role(signals: Signals, *roles: Role) -> Mask:
    """Which collectives of the used window are for one of some things; shape (n,)."""
    return window_roles(signals).is_for(*roles)


DOMINANT: Final = 0.5
"""A collective that takes less than half of the exposed time is one of several."""
GOOD_PART: Final = 0.2
"""Collectives that take less of the exposed time get no advice of their own."""
_HIDDEN_OF_EXPOSED: Final = 0.5
"""Of what XLA leaves exposed."""
FEWEST_IN_STEP: Final = 4
"""Among fewer collectives, one that takes half of the time is no surprise."""
_MOSTLY: Final = 0.5
"""Of the compute. A program that computes less in 16 bits is not a 16-bit program."""
_CALL: Final = regex(r"(?:nccl|rccl|gloo|mpi|ucc|c10d|_c10d_functional|record_param_comms)\b")


_KNOWN, _KNOWN_OF_ALL_RANKS = 0.9, 0.5
"""Share of the exposed time of which transfer and waiting must be known."""


class ExposedUse(Struct, frozen=True):
    """The collectives of the used window that are for one thing."""

    role: Role
    count: int
    exposed_ns: int
    evidence: str
    """What most of them are recognized by; empty if unknown."""
    is_launched: bool
    """Whether the profile shows the launch of any of them."""


class DominantCollective(Struct, frozen=True):
    """The collective that takes most of the exposed time of the steps by itself."""

    row: int
    """The longest one; row of the trace."""
    operation: str
    exposed_ns: int
    """Total over the steps."""
    annotation: str
    """The innermost annotation of the program around its launch; empty if there is none."""


def exposed_once_ns(signals: Signals, chosen: Mask) -> Int64:
    """The exposed part of each collective, with no time counted for two of them.

    Where several of them run at the same time, it counts for the one that began first. It is 0 for
    those that are not chosen; shape (collectives,).
    """
    collectives, events = collectives_of(signals), signals.trace.events
    if signals.trace.totals is not None:  # sums have no times of their own
        return np.where(chosen, collectives.exposed_ns, 0)
    once: Int64 = np.zeros(len(collectives), dtype=np.int64)
    row, exposed = collectives.row[chosen], signals.attribution.intervals[Cause.COMMUNICATION]
    once[chosen] = overlap_once_ns(exposed, events.start_ns[row], events.end_ns[row])
    return once


@memoized
def exposed_by_role(signals: Signals) -> tuple[ExposedUse, ...]:
    """What the collectives are for, the most exposed use first."""
    collectives, roles = collectives_of(signals), window_roles(signals)
    once_ns = exposed_once_ns(signals, np.ones(len(collectives), dtype=bool))
    found = []
    for use in roles.uses():
        chosen = roles.is_for(use.role)
        count = int((chosen & ~collectives.is_start).sum())
        exposed_ns = int(once_ns[chosen].sum())
        launches = signals.trace.events.launched_by[collectives.row[chosen]]
        is_launched = bool((launches >= 0).any())
        found.append(ExposedUse(use.role, count, exposed_ns, use.evidence, is_launched))
    return tuple(sorted(found, key=lambda use: -use.exposed_ns))


@memoized
def dominant_collective(signals: Signals) -> DominantCollective | None:
    """The longest collective of each step, if it takes most of the exposed time; else None."""
    collectives, steps = collectives_of(signals), signals.steps
    total_ns = int(collectives.exposed_ns.sum())
    if signals.trace.totals is not None or collectives.count < FEWEST_IN_STEP * steps.count:
        return None
    step = steps.owner[collectives.row]
    order = np.lexsort((-collectives.exposed_ns, step))
    first = np.flatnonzero(np.diff(step[order], prepend=-1))
    longest = order[first]
    exposed_ns = int(collectives.exposed_ns[longest].sum())
    operations = {collectives.operation[index] for index in longest.tolist()}
    if exposed_ns < DOMINANT * total_ns or not total_ns or len(operations) > 1:
        return None
    row = int(collectives.row[longest[np.argmax(collectives.exposed_ns[longest])]])
    return DominantCollective(row, operations.pop(), exposed_ns, _annotation(signals, row))


def _annotation(signals: Signals, row: int) -> str:
    """The innermost annotation of the program around the launch of a device event."""
    trace = signals.trace
    around = int(trace.events.launched_by[row])
    while around >= 0:
        name = trace.name(around)
        if trace.events.kind[around] == EventKind.ANNOTATION and not _CALL.match(name):
            return name
        around = int(trace.events.parent[around])
    return ""


class GradientMessages(Struct, frozen=True):
    """The all-reduces of gradients of whole steps, per step."""

    count: float
    size_bytes: int


@memoized
def gradient_messages(signals: Signals) -> GradientMessages | None:
    """The all-reduces of gradients per step; None if no step is known as a whole."""
    messages = step_messages(signals, "all-reduce")
    if messages is None:
        return None
    slot = np.searchsorted(signals.trace.collectives.row, messages.collectives.row)
    is_gradient = collective_roles(signals).is_for(Role.GRADIENTS)[slot]
    size_bytes = int(messages.collectives.size_bytes[is_gradient].sum())
    return GradientMessages(is_gradient.sum() / messages.steps, size_bytes // messages.steps)


def transfer_share(signals: Signals) -> float | None:
    """Share of collective time that is transfer, weighted by exposure; None if unknown.

    If all ranks were profiled, only the edges of the recordings differ, which are like the rest.
    """
    collectives = collectives_of(signals)
    known = (collectives.transfer_ns >= 0) & (collectives.duration_ns > 0)
    weight = collectives.exposed_ns[known].sum()
    enough = _KNOWN_OF_ALL_RANKS if has_all_ranks(signals) else _KNOWN
    if weight == 0 or weight < enough * collectives.exposed_ns.sum():
        return None
    transfer = collectives.transfer_ns[known] / collectives.duration_ns[known]
    return float((transfer * collectives.exposed_ns[known]).sum() / weight)


def has_all_ranks(signals: Signals) -> bool:
    """Whether every rank of the program was profiled."""
    world = signals.trace.source.world_size
    return world is not None and len(signals.run.traces) >= world


def needed_transfer_ns(signals: Signals) -> int:
    """Exposed time that the collectives' bytes need on the link, where both are known.

    Assumes that the overlapped part of a collective is spent on transfer first.
    """
    collectives = collectives_of(signals)
    needed_ns = wire_bytes(signals) / link_of_group(signals) * NS_PER_S
    covered_ns = collectives.duration_ns - collectives.exposed_ns
    exposed_ns = np.clip(np.nan_to_num(needed_ns) - covered_ns, 0, collectives.exposed_ns)
    return int(exposed_ns.sum())


def free_compute_ns(signals: Signals) -> int:
    """Compute that no collective overlaps yet: as long as it takes, communication can hide.

    XLA already hides what it can. Of what it leaves exposed, half is expected to be hidden, by
    splitting collectives into parts or by moving work. By its TPU compiler's estimate, flags that
    ask for more overlap change nothing in most programs.
    """
    collectives = collectives_of(signals)
    compute_ns = signals.attribution.total_ns(*COMPUTE, Cause.HOST_COMPUTE)
    overlapped_ns = int((collectives.duration_ns - collectives.exposed_ns).sum())
    free_ns = max(compute_ns - overlapped_ns, 0)
    if not any(running.program.groups for running in running_programs(signals)):
        return free_ns
    return min(free_ns, round(_HIDDEN_OF_EXPOSED * int(collectives.exposed_ns.sum())))


_BACKWARD: Final = regex(
    r"^(?:autograd::engine::evaluate_function|FSDP::(?:pre_backward|backward_prefetch)"
    r"|\w+Backward\d*$|.*(?:_pre_backward_hook|_backward_prefetch))"
)


_FEWEST_COPIES = 10
"""Smaller models have few parameters, and a handful of copies may be something else."""


@memoized
def copies_of_gradients(signals: Signals) -> Int32:
    """Copies within the device that were launched in a row right after an all-reduce.

    DistributedDataParallel copies each gradient out of its bucket, unless gradients are views of
    the buckets (torch/csrc/distributed/c10d/reducer.cpp, `copy_bucket_to_grad`).
    """
    trace, events, rows = signals.trace, signals.trace.events, signals.device.rows
    rows = rows[events.launched_by[rows] >= 0]
    rows = rows[np.argsort(events.start_ns[events.launched_by[rows]], kind="stable")]
    within = trace.copies.direction == CopyDirection.DEVICE_TO_DEVICE
    is_copy = is_in(rows, trace.copies.row[within])
    reduces = trace.is_any_of(trace.collectives.operation, "all-reduce")
    is_reduced = is_in(rows, trace.collectives.row[reduces])
    # What is no copy begins a series, to which the copies after it belong.
    series = np.cumsum(~is_copy)
    size = np.bincount(series[is_copy], minlength=len(rows) + 1)
    follows = np.zeros(len(rows) + 1, dtype=np.bool_)
    follows[series[is_reduced]] = True
    chosen: Int32 = rows[is_copy & follows[series] & (size[series] >= _FEWEST_COPIES)]
    return np.sort(chosen)


def gathered_once(signals: Signals) -> int | None:
    """The number of gathers of sharded parameters; None if any is in a backward pass."""
    trace, table = signals.trace, signals.trace.collectives
    launch = trace.events.launched_by[table.row]
    gathers = trace.is_any_of(table.operation, "all-gather")
    gathers &= collective_roles(signals).is_for(Role.SHARDS) & (launch >= 0)
    if not gathers.any() or _in_backward(trace, launch[gathers]).any():
        return None
    return int(gathers.sum())


def _in_backward(trace: Trace, launches: Int32) -> Mask:
    """Which launches are part of a backward pass; shape (n,)."""
    events = trace.events
    names = distinct(events.name).tolist()
    nodes = is_in(events.name, [name for name in names if _BACKWARD.match(trace.strings[name])])
    return innermost_marked(events.parent, launches.astype(np.int32), nodes) >= 0


_SHARDING = ("reduce-scatter", "all-gather", "broadcast", "reduce")
"""What an optimizer that is sharded already sends."""


class ReplicatedUpdates(Struct, frozen=True):
    """The optimizer's compute in the used steps."""

    compute: Intervals
    """When the device, or in a program on the CPU the host, computes for the optimizer."""
    ranks: int
    """How many ranks compute the same."""
    all_reduce_ns: int
    """Transfer of all gradients; waiting included where it is unknown."""


@memoized
def replicated_updates(signals: Signals) -> ReplicatedUpdates | None:
    """The replicated updates; None if there are none, or a cheaper change comes first.

    A loop over parameters takes much longer than it must: only the fused form tells what is left.
    """
    updates, loop = host_updates(signals), optimizer_loop(signals)
    if not len(loop.steps) or loop.is_loop or (updates is not None and not updates.is_fused):
        return None
    collectives = collectives_of(signals)
    gradients = collectives.of("all-reduce") & has_role(signals, Role.GRADIENTS)
    gradients &= collectives.group_size > 1
    if not gradients.any() or has_role(signals, Role.SHARDS).any():
        return None
    events = signals.trace.events
    launch = events.launched_by[collectives.row]
    began = np.where(launch >= 0, events.start_ns[launch], events.start_ns[collectives.row])
    if (collectives.of(*_SHARDING) & contains(loop.steps, began)).any():
        return None
    if signals.device.is_host_only:
        compute = intersect(signals.attribution.intervals[Cause.HOST_COMPUTE], loop.steps)
    else:
        rows = launched_in(signals, loop.steps)
        compute = intersect(signals.attribution.of(*COMPUTE), events.spans(rows))
    return ReplicatedUpdates(
        compute,
        int(np.median(collectives.group_size[gradients])),
        int(collectives.without_waiting_ns[gradients].sum()),
    )
