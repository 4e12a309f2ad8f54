"""What recording cost the host: a low estimate from the recorded events.

Each recorded operator or Python frame costs the host some time that it does not spend without a
profiler. So a host is less late than its profile shows, and findings about the host are reduced by
this amount. If the file itself shows that recording took longer (`recording_pauses`), that counts.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct, is_in, places_by_value
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, join, last_before, overlap_ns, union
from tb_perfadvisor.trace.tables import Int32, Int64

# A profiler collects an operator's shapes and call stack before the operator's start, and writes
# its buffers after the end. So this time lies in the gaps between operators. Some operators only
# call another one: the time between the two starts, and between the two ends, is recording and a
# dispatch that takes a fraction of a microsecond. With the stacks of PyTorch 1.8 to 1.12, recording
# takes 10 to 60 microseconds per operator, often more than the operator's own work. It grows with
# the depth of the Python stack.

Bool = NDArray[np.bool_]

DISPATCH_NS = 500
"""A call through the dispatcher without a profiler: 0.2 to 0.5 microseconds."""
NEIGHBORS = 32
"""Number of consecutive calls that show the cost of recording around them. The cost changes with
the depth of the stack: it is larger in a model's forward pass than in an optimizer's loop."""

# Operators that call another one immediately (ATen/native, native_functions.yaml).
_CALLS = {
    "aten::conv2d": ("aten::convolution",),
    "aten::convolution": ("aten::_convolution",),
    "aten::batch_norm": ("aten::_batch_norm_impl_index",),
    "aten::layer_norm": ("aten::native_layer_norm",),
    "aten::relu": ("aten::clamp_min",),
    "aten::relu_": ("aten::clamp_min_",),
    "aten::linear": ("aten::t",),
    "aten::t": ("aten::transpose",),
    "aten::transpose": ("aten::as_strided",),
    "aten::reshape": ("aten::view",),
    "aten::narrow": ("aten::slice",),
    "aten::to": ("aten::_to_copy",),
    "aten::clone": ("aten::empty_like",),
    "aten::empty_like": ("aten::empty", "aten::empty_strided"),
    "aten::zero_": ("aten::fill_",),
    "aten::item": ("aten::_local_scalar_dense",),
    "torch::autograd::AccumulateGrad": ("aten::add_", "aten::detach"),
}

_NEVER = np.int64(-1) << 62


def recording_pauses(trace: Trace, rows: Int32) -> Intervals:
    """When recording delayed threads before and after operators.

    `rows` are operators in order of start. A thread with too few calls of this kind has no pauses.
    A pause is at most the gap between an operator and the previous or next event on its thread.
    """
    events, is_call = trace.events, _calls(trace, rows)
    others = np.flatnonzero(events.kind != EventKind.PYTHON)
    others_by_track = {
        track: others[places] for track, places in places_by_value(events.track[others])
    }
    pauses = [
        _pauses_of_thread(trace, rows[places], is_call[places], others_by_track[track])
        for track, places in places_by_value(events.track[rows])
        if is_call[places].any()
    ]
    return join(*pauses)


def _pauses_of_thread(trace: Trace, rows: Int32, is_call: Bool, others: Int64) -> Intervals:
    """The pauses around some operators of a thread. `others` are all of its events."""
    events = trace.events
    start, end, caller = events.start_ns[rows], events.end_ns[rows], events.parent[rows]
    # In half nanoseconds, a start lies just after its moment, and an end at it: so the last
    # bound up to a moment is a start before it, or an end until it.
    bounds = np.concatenate((2 * events.start_ns[others] + 1, 2 * events.end_ns[others]))
    bounds.sort(kind="stable")
    at = last_before(bounds, 2 * start)
    gap_ns = start - np.where(at >= 0, bounds[at] >> 1, _NEVER)
    before_ns = _pause(start, gap_ns, start - events.start_ns[caller], is_call)
    # With time reversed, the pause after an operator is the pause before it. From the other
    # side, an end lies just before its moment, which is the same order.
    order = np.argsort(-end, kind="stable")
    at = np.searchsorted(bounds, 2 * end + 1)
    gap_ns = np.where(at < bounds.size, bounds[at % bounds.size] >> 1, -_NEVER) - end
    after_ns = np.empty_like(before_ns)
    after_ns[order] = _pause(
        -end[order], gap_ns[order], (events.end_ns[caller] - end)[order], is_call[order]
    )
    return join(union(start - before_ns, start), union(end, end + after_ns))


def _pause(at_ns: Int64, gap_ns: Int64, since_call_ns: Int64, is_call: Bool) -> Int64:
    """How long recording took before each operator of a thread, in order; 0 if unknown.

    `at_ns` are starts of the operators, `gap_ns` is the time since the last bound of an event on
    the thread, `since_call_ns` that since the start of the operator that called it, and `is_call`
    tells whether that one only calls this one; shape (n,).
    """
    # If the caller called another operator before, the gap starts with that operator's end.
    tells = np.flatnonzero(is_call & (since_call_ns == gap_ns))
    blocks = len(tells) // NEIGHBORS
    if blocks == 0:
        return np.zeros_like(gap_ns)
    seen = tells[: blocks * NEIGHBORS].reshape(blocks, NEIGHBORS)
    # The lower quartile, because anything else in the gap only adds to it.
    usual_ns = np.maximum(np.sort(gap_ns[seen], axis=1)[:, NEIGHBORS // 4] - DISPATCH_NS, 0)
    block = np.maximum(last_before(at_ns[seen[:, 0]], at_ns), 0)
    pause_ns: Int64 = np.minimum(gap_ns, usual_ns[block])
    return pause_ns


def _calls(trace: Trace, rows: Int32) -> Bool:
    """Whether an operator is called by one that does nothing else before the call."""
    events = trace.events
    parent = events.parent[rows]
    caller = np.where(parent >= 0, events.name[parent], -1)
    name = events.name[rows]
    is_called = np.zeros(len(rows), dtype=np.bool_)
    ids = {trace.strings[index]: index for index in distinct(name).tolist()}
    for calling, called in _CALLS.items():
        if calling in ids:
            known = [ids[text] for text in called if text in ids]
            is_called |= (caller == ids[calling]) & is_in(name, known)
    return is_called


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
    recorded = events.spans(overhead)
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
