"""What exposed communication goes into: by purpose, and the one collective that dominates it."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.ranks.collective_roles import Role, collective_roles
from tb_perfadvisor.signals.ranks.ranks import collectives_of
from tb_perfadvisor.signals.ranks.step_messages import step_messages
from tb_perfadvisor.signals.ranks.window_roles import window_roles
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind

DOMINANT: Final = 0.5
"""A collective that takes less than half of the exposed time is one of several."""
FEWEST_IN_STEP: Final = 4
"""Among fewer collectives, one that takes half of the time is no surprise."""
_CALL: Final = re.compile(r"(?:nccl|rccl|gloo|mpi|ucc|c10d|_c10d_functional|record_param_comms)\b")


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


@memoized
def exposed_by_role(signals: Signals) -> tuple[ExposedUse, ...]:
    """What the collectives are for, the most exposed use first."""
    collectives, roles = collectives_of(signals), window_roles(signals)
    found = []
    for use in roles.uses():
        chosen = roles.is_for(use.role)
        count = int((chosen & ~collectives.is_start).sum())
        exposed_ns = int(collectives.exposed_ns[chosen].sum())
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
