"""What recording cost the host: a low estimate from the recorded events.

Each recorded operator or Python frame costs the host some time that it does not spend without a
profiler. So a host is less late than its profile shows, and findings about the host are reduced by
this amount. If the file itself shows that recording took longer (`recording_pauses`), that counts.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.recording.recording_pauses import recording_pauses
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, overlap_ns, union
from tb_perfadvisor.trace.tables import Int64

# Measured in thread CPU time with PyTorch 2.13 on a 2-core x86 virtual machine, as the median of
# nine runs with each option against none: torch.add on four numbers (which allocates) costs 0.24
# microseconds more when it is recorded, an in-place multiplication 0.91; the means of the two.
OPERATOR_NS = 600
SHAPES_NS = 400
MEMORY_NS = 250
STACKS_NS = 250
"""Per operator, in addition to the frames."""
FRAME_NS: Mapping[str, int] = {"pytorch": 140, "jax": 230, "tensorflow": 230}
"""Per Python frame. JAX 0.10 and TensorFlow have the same tracer; measured in the same way."""
_OTHER_FRAME_NS = 140
RANGE_NS = 300
"""Per range that XLA, JAX's runtime or TensorFlow records about itself.

Measured with JAX 0.10 on the same machine: a compiled loop whose operators leave 31,000 ranges
takes 16.1 ms with the profiler and 5.7 without, 340 ns each; 546 operators that are dispatched
one by one leave 7,800 ranges and take 14.5 and 12.2 ms, 290 ns each.
"""


class ProfilerOverhead(Struct, frozen=True):
    """When recording cost the launching and step threads time, and how much."""

    at_ns: Int64
    """Start of each recorded event, in order; shape (n,)."""
    cost_ns: Int64
    """Estimated cost of recording each event; shape (n,)."""
    pauses: Intervals
    """Recording around operators that the profile itself shows."""
    recorded: Intervals
    """When the profiler recorded its own work (buffers, instrumentation)."""
    options: tuple[str, ...]
    """The costly options that were on according to the file: shapes, stacks, memory."""

    def within_ns(self, intervals: Intervals) -> int:
        """Cost within some intervals, at most their length."""
        if len(intervals) == 0:
            return 0
        before = np.concatenate(([0], np.cumsum(self.cost_ns)))
        first = np.searchsorted(self.at_ns, intervals[:, 0], side="left")
        last = np.searchsorted(self.at_ns, intervals[:, 1], side="left")
        recorded_ns = overlap_ns(self.recorded, intervals[:, 0], intervals[:, 1])
        pauses_ns = overlap_ns(self.pauses, intervals[:, 0], intervals[:, 1])
        length = intervals[:, 1] - intervals[:, 0]
        # Both are low estimates of the same cost.
        estimates = (before[last] - before[first], pauses_ns)
        return max(int(np.minimum(estimate + recorded_ns, length).sum()) for estimate in estimates)


@memoized
def profiler_overhead(signals: Signals) -> ProfilerOverhead:
    """Estimate what recording cost the threads that run the steps.

    Calls of the device's runtime are recorded as well. Their cost is unknown and not counted, which
    keeps the estimate low.
    """
    trace, source = signals.trace, signals.trace.source
    events = trace.events
    launches = trace.rows(EventKind.LAUNCH)
    tracks = distinct(np.append(events.track[launches], max(signals.step_track, 0)))
    rows = trace.rows(EventKind.OPERATOR, EventKind.ANNOTATION, EventKind.PYTHON)
    rows = rows[is_in(events.track[rows], tracks)]
    frame_ns = FRAME_NS.get(source.framework, _OTHER_FRAME_NS)
    operator_ns = RANGE_NS if source.framework in ("jax", "tensorflow") else 0
    if source.framework == "pytorch":
        operator_ns = (
            OPERATOR_NS
            + SHAPES_NS * (source.has_shapes is True)
            + MEMORY_NS * (source.has_memory is True)
            + STACKS_NS * (source.has_stacks is True)
        )
    is_frame = events.kind[rows] == EventKind.PYTHON
    cost = np.where(is_frame, frame_ns, operator_ns).astype(np.int64)
    overhead = trace.rows(EventKind.OVERHEAD)
    recorded = union(events.start_ns[overhead], events.end_ns[overhead])
    operators = rows[events.kind[rows] == EventKind.OPERATOR]
    return ProfilerOverhead(
        at_ns=events.start_ns[rows],
        cost_ns=cost,
        pauses=recording_pauses(trace, operators) if source.framework == "pytorch" else EMPTY,
        recorded=recorded,
        options=tuple(
            name
            for name, is_on in (
                ("shapes", source.has_shapes),
                ("stacks", source.has_stacks),
                ("memory", source.has_memory),
            )
            if is_on
        ),
    )
