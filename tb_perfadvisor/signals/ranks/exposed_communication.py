"""What exposed communication goes into, and what of it is transfer that compute could hide."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.core.causes import COMPUTE, Cause
from tb_perfadvisor.signals.core.collectives import Mask
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.program.graph import running_programs
from tb_perfadvisor.signals.ranks.collective_costs import link_of_group, wire_bytes
from tb_perfadvisor.signals.ranks.collective_roles import Role, collective_roles
from tb_perfadvisor.signals.ranks.ranks import collectives_of
from tb_perfadvisor.signals.ranks.step_messages import step_messages
from tb_perfadvisor.signals.ranks.window_roles import has_role, window_roles
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind, Precision
from tb_perfadvisor.trace.intervals import overlap_once_ns
from tb_perfadvisor.trace.tables import Int64
from tb_perfadvisor.units import NS_PER_S

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
_CALL: Final = re.compile(r"(?:nccl|rccl|gloo|mpi|ucc|c10d|_c10d_functional|record_param_comms)\b")


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

    Where several of them run at the same time, it counts for the one that began first.

    Args:
        signals: The worker's facts.
        chosen: Which of its collectives, shape (collectives,).

    Returns:
        Shape (collectives,); 0 for those that are not chosen.
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


def sends_wide_sums(signals: Signals) -> bool:
    """Whether 32-bit sums that are no gradients take a good part, and most compute is 16-bit."""
    collectives, shares = collectives_of(signals), signals.compute_shares
    wide = collectives.of("all-reduce", "reduce-scatter") & collectives.is_32_bit
    wide &= has_role(signals, Role.TENSOR, Role.UNKNOWN)
    exposed_ns = collectives.exposed_ns
    is_much = exposed_ns[wide].sum() >= GOOD_PART * exposed_ns.sum() > 0
    return bool(is_much) and (shares or {}).get(Precision.BITS_16, 0.0) >= _MOSTLY
