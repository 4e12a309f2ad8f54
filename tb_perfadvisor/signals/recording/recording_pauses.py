"""How long recording delayed threads around each operator, as the profile itself shows.

A profiler collects an operator's shapes and call stack before the operator's start, and writes its
buffers after the end. So this time lies in the gaps between operators. Some operators only call
another one: the time between the two starts, and between the two ends, is recording and a dispatch
that takes a fraction of a microsecond. With the stacks of PyTorch 1.8 to 1.12, recording takes 10
to 60 microseconds per operator, often more than the operator's own work. It grows with the depth of
the Python stack.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct, is_in, places_by_value
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, last_before, union
from tb_perfadvisor.trace.tables import Int32, Int64

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
    parent = events.parent[rows]
    from_ns: list[Int64] = []
    until_ns: list[Int64] = []
    others = np.flatnonzero(events.kind != EventKind.PYTHON)
    others_by_track = {
        track: others[places] for track, places in places_by_value(events.track[others])
    }
    for track, index in places_by_value(events.track[rows]):
        if not is_call[index].any():
            continue
        on_track = others_by_track[track]
        start, end = events.start_ns[rows[index]], events.end_ns[rows[index]]
        caller, calls = parent[index], is_call[index]
        # In half nanoseconds, a start lies just after its moment, and an end at it: so the last
        # bound up to a moment is a start before it, or an end until it.
        starts, ends = events.start_ns[on_track], events.end_ns[on_track]
        bounds = np.sort(np.concatenate((2 * starts + 1, 2 * ends)), kind="stable")
        at = last_before(bounds, 2 * start)
        gap_ns = start - np.where(at >= 0, bounds[at] >> 1, _NEVER)
        before_ns = _pause(start, gap_ns, start - events.start_ns[caller], calls)
        # With time reversed, the pause after an operator is the pause before it. From the other
        # side, an end lies just before its moment, which is the same order.
        order = np.argsort(-end, kind="stable")
        at = np.searchsorted(bounds, 2 * end + 1)
        gap_ns = np.where(at < bounds.size, bounds[at % bounds.size] >> 1, -_NEVER) - end
        after_ns = np.empty_like(before_ns)
        after_ns[order] = _pause(
            -end[order], gap_ns[order], (events.end_ns[caller] - end)[order], calls[order]
        )
        from_ns += [start - before_ns, end]
        until_ns += [start, end + after_ns]
    return union(np.concatenate(from_ns), np.concatenate(until_ns)) if from_ns else EMPTY


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
