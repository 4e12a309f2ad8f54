"""Updates that every data-parallel rank computes in full, and what gathering them would cost.

With the optimizer sharded over n ranks, each updates one n-th of the parameters and gathers the
rest. A reduce-scatter and an all-gather send what the all-reduce of the gradients sent before
(Rajbhandari et al., "ZeRO", section 7.1), but the all-gather is not part of the backward pass.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.core.causes import COMPUTE, Cause
from tb_perfadvisor.signals.host.optimizer_loops import host_updates, optimizer_loop
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.ranks.collective_roles import Role
from tb_perfadvisor.signals.ranks.ranks import collectives_of
from tb_perfadvisor.signals.ranks.window_roles import has_role
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace.intervals import Intervals, contains, intersect, union

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
        rows = np.flatnonzero(events.launched_by >= 0)
        rows = rows[contains(loop.steps, events.start_ns[events.launched_by[rows]])]
        compute = intersect(
            signals.attribution.of(*COMPUTE), union(events.start_ns[rows], events.end_ns[rows])
        )
    return ReplicatedUpdates(
        compute,
        int(np.median(collectives.group_size[gradients])),
        int(collectives.without_waiting_ns[gradients].sum()),
    )
