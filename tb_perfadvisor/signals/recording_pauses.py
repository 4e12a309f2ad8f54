"""How long recording held its threads up before each operator, as the profile itself shows.

A profiler notes an operator's shapes and call stack before the operator's start, so that the time
lies in the gap before it. Some operators do nothing but call another one: what passes between
their start and the other's is recording, and a dispatch that takes a fraction of a microsecond.
With the stacks of PyTorch 1.8 to 1.12 it is ten to thirty microseconds for each operator of the
forward pass, more than the operator's own work, and the deeper the Python stack the more.
"""

from __future__ import annotations

import numpy as np

from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.tables import Int32, Int64

DISPATCH_NS = 500
"""A call through the dispatcher without a profiler: 0.2 to 0.5 microseconds."""
NEIGHBOURS = 32
"""So many such calls in a row tell what recording costs around them. It changes with the depth of
the stack: in a model's forward pass it is more than in an optimizer's loop."""

# Operators that call the other one at once (ATen/native, native_functions.yaml).
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


def pauses_before(trace: Trace, rows: Int32) -> Int64:
    """Nanoseconds that recording took before each operator.

    Args:
        trace: What was recorded.
        rows: Operators in order of start, shape (n,).

    Returns:
        Shape (n,); 0 where the thread has too few calls that tell. Never more than what lies
        between the operator's start and what its thread recorded before.
    """
    pause_ns = np.zeros(len(rows), dtype=np.int64)
    events, is_call = trace.events, _calls(trace, rows)
    for track in np.unique(events.track[rows[is_call]]).tolist():
        own = np.flatnonzero(events.track[rows] == track)
        start = events.start_ns[rows[own]]
        gap = _since_last(trace, track, start)
        parent = events.parent[rows[own]]
        # A call that comes after another of its caller's shows that one's end, not its start.
        tells = is_call[own] & (start - events.start_ns[parent] == gap)
        blocks = int(tells.sum()) // NEIGHBOURS
        if blocks == 0:
            continue
        seen = np.flatnonzero(tells)[: blocks * NEIGHBOURS].reshape(blocks, NEIGHBOURS)
        # The lower quartile: what else may come between only adds to it.
        quartile = np.sort(gap[seen], axis=1)[:, NEIGHBOURS // 4]
        block = np.searchsorted(start[seen[:, 0]], start, side="right") - 1
        usual = np.maximum(quartile - DISPATCH_NS, 0)[np.maximum(block, 0)]
        pause_ns[own] = np.minimum(gap, usual)
    return pause_ns


def _calls(trace: Trace, rows: Int32) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Whether an operator is called by one that does nothing else before."""
    events = trace.events
    parent = events.parent[rows]
    caller = np.where(parent >= 0, events.name[parent], -1)
    name = events.name[rows]
    found = np.zeros(len(rows), dtype=np.bool_)
    ids = {trace.strings[one]: one for one in np.unique(name).tolist()}
    for calling, called in _CALLS.items():
        if calling in ids:
            known = [ids[one] for one in called if one in ids]
            found |= (caller == ids[calling]) & np.isin(name, known)
    return found


def _since_last(trace: Trace, track: int, start_ns: Int64) -> Int64:
    """Since a thread's last recorded start or end before some of its events' starts."""
    events = trace.events
    on_track = (events.track == track) & (events.kind != EventKind.PYTHON)
    starts, ends = events.start_ns[on_track], np.sort(events.end_ns[on_track])
    # Starts are in order; an event's own start is not before it.
    started = np.searchsorted(starts, start_ns, side="left") - 1
    ended = np.searchsorted(ends, start_ns, side="right") - 1
    never = np.int64(-1) << 62
    last = np.maximum(
        np.where(started >= 0, starts[started], never), np.where(ended >= 0, ends[ended], never)
    )
    gap: Int64 = start_ns - last
    return gap
