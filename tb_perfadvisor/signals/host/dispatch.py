"""What a PyTorch step on the CPU spends on calling operators, not on computing."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.core.causes import Cause
from tb_perfadvisor.signals.host.host_operators import host_operators
from tb_perfadvisor.signals.host.operator_loops import DISPATCH_NS, LONGEST_GAP_NS
from tb_perfadvisor.signals.host.optimizer_loops import optimizer_loop, zeroing_loop
from tb_perfadvisor.signals.launch.gaps import short_and_long_gaps, stretched_ns
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace.intervals import Intervals, contains, join, minus, total_ns


class Dispatch(Struct, frozen=True):
    """The forward and backward passes of the used steps."""

    spans: Intervals
    """When their operators run, with the short gaps between them."""
    calling_ns: int
    """The part of that time in which operators are called, and not yet compute."""


@memoized
def dispatch(signals: Signals) -> Dispatch:
    """What calling operators takes, without those of optimizers; nothing on a device."""
    operators = host_operators(signals)
    updating = join(optimizer_loop(signals).steps, zeroing_loop(signals).steps)
    longest_ns = stretched_ns(LONGEST_GAP_NS, signals.trace)
    gaps, _ = short_and_long_gaps(signals.attribution.idle, longest_ns)
    gaps = minus(gaps, updating)
    starts = signals.trace.events.start_ns[operators.rows]
    own_ns = operators.self_ns[~contains(updating, starts)]
    most_ns = stretched_ns(DISPATCH_NS, signals.trace)
    working = minus(signals.attribution.intervals[Cause.HOST_COMPUTE], updating)
    return Dispatch(join(working, gaps), total_ns(gaps) + int(np.minimum(own_ns, most_ns).sum()))
