"""Steps on the CPU that PyTorch runs operator by operator, and what compiling them would save.

Python, dispatch and tiny operators of an eager loop are one cause. What `torch.compile` saves of it
does not follow from how long they take: matrix products stay calls of a library, each gradient of a
compiled function is accumulated by itself as before, and a compiled function checks its inputs. So
does each of the functions that it becomes where Python asks what a tensor holds.
"""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.core.origins import NODE
from tb_perfadvisor.signals.core.placement import has_ancestor
from tb_perfadvisor.signals.host.loops import LoopKind, operator_loops
from tb_perfadvisor.signals.host.optimizer_loops import optimizer_loop, zeroing_loop
from tb_perfadvisor.signals.launch.delays import stretched_ns
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import is_in
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, contains, join, minus, union
from tb_perfadvisor.trace.names import named
from tb_perfadvisor.trace.tables import Int32

ACCUMULATES = regex(r"AccumulateGrad")
KEPT = regex(
    r"mm\b|matmul|linear|conv|lstm|gru\b|rnn|attention|embedding"
    r"|MmBackward|AddmmBackward|Convolution|Linear|Attention|Embedding|Rnn|Lstm",
)
"""Operators and autograd nodes that compiled code still calls one by one."""
_DECISIONS = regex(r"^aten::(_local_scalar_dense|nonzero|masked_select|_unique2|equal)$")
"""What Python asks a tensor for: a number, or how many elements are chosen."""
_ASKS = regex(r"^aten::(item|is_nonzero|nonzero|_unique2|equal)$")
_NODES = regex(re.escape(NODE))
_KEEPS_SIZE = regex(r"^aten::index_put_?$")
"""It asks for the elements that a mask chooses, but the size of its result is known."""
_RECURRENT = regex(r"^aten::(rnn_tanh|rnn_relu|lstm|gru)$")
_PARTS_OF_LOOPS = (
    LoopKind.OPTIMIZER,
    LoopKind.PARAMETERS,
    LoopKind.ELEMENTS,
    LoopKind.SEQUENCE,
)
"""Loops that a call of the framework replaces, which is better than compiling them."""
_LONGEST_GAP_NS = 300_000
"""Between two operators; longer gaps are host code of the program."""

_TRAINING_NS, _FORWARD_NS = (3_300, 54_000), (2_600, 33_000)
"""Saved for each operator that is fused, and spent for each call."""
_GRADIENT_NS, _BREAK_NS = 4_200, 20_000
"""Spent for each gradient that is accumulated, and for each break in a call. All are fitted by
`cost_models/compiled_steps.py` to small models with PyTorch 2.13 on one core of an x86 virtual
machine. Of eleven that train, 0.9 to 2.6 times as much was saved where a tenth of the step or more
is foretold. A perceptron of 48 layers got slower by half, for which 1 % is foretold. Without
gradients, in processor time and in turns, microseconds were saved: by three layers -40 and -24 (-25
foretold), by one network in 50 calls -1,310 and -750 (-1,130), with six looks at a probability -23
and -104 (-41), by experts that masks choose -190 (-300), by normalized blocks 109 and 125 (109),
and by ten steps of a field 325 (334)."""
MOST_PART = 2.6


class EagerSteps(Struct, frozen=True):
    """What of the used steps a compiler would fuse."""

    rows: Int32
    """The outermost operators and autograd nodes that it fuses, in order of start."""
    gradients: int
    """How many gradients are accumulated."""
    spans: Intervals
    """When these operators run, and Python between them."""
    recurrent_calls: int
    """How often a step calls a recurrent layer, which takes a whole sequence at once."""
    breaks: int
    """How often, between its operators, a step asks for what a tensor holds."""
    saving_ns: int
    """What compiling is expected to save; 0 if it would cost more."""


def expected_saving_ns(
    operators: int, gradients: int, calls: int, *, trains: bool, breaks: int = 0
) -> int:
    """What compiling saves of some steps; negative if it costs more.

    The outermost operators that are fused, the gradients that are accumulated, the calls of what is
    compiled, and the breaks in them count in all steps.
    """
    operator_ns, call_ns = _TRAINING_NS if trains else _FORWARD_NS
    spent_ns = gradients * _GRADIENT_NS + calls * call_ns + breaks * _BREAK_NS
    return operators * operator_ns - spent_ns


@memoized
def eager_steps(signals: Signals) -> EagerSteps | None:
    """The eager operators of PyTorch's steps on the CPU; None of other programs."""
    trace, events = signals.trace, signals.trace.events
    if not signals.device.is_host_only or trace.source.framework != "pytorch":
        return None
    rows = signals.steps.own(trace.rows(EventKind.OPERATOR))
    rows = every = rows[events.track[rows] == signals.step_track]
    is_around = is_in(events.kind, (EventKind.OPERATOR, EventKind.INPUT_WAIT, EventKind.COMPILE))
    rows = rows[~has_ancestor(events.parent, rows, is_around)]
    loops = [loop.spans for loop in operator_loops(signals) if loop.kind in _PARTS_OF_LOOPS]
    updating = join(optimizer_loop(signals).steps, zeroing_loop(signals).steps)
    rows = rows[~contains(join(updating, *loops), events.start_ns[rows])]
    accumulating = named(signals.trace, rows, ACCUMULATES)
    fused = rows[~accumulating & ~named(trace, rows, KEPT) & ~named(trace, rows, _ASKS)]
    gradients = int(accumulating.sum())
    steps, breaks = max(signals.steps.count, 1), _breaks(signals, every, rows)
    operators, calls = len(fused), steps
    examined = trace.facts.examined
    if examined is not None and examined.model_calls:
        # What is compiled is the model: its calls, and what they call.
        operators = round(operators * examined.in_models)
        calls = round(steps * examined.model_calls)
        breaks = max(breaks - max(calls - steps, 0), 0)  # the others lie between its calls
    saving_ns = expected_saving_ns(operators, gradients, calls, trains=gradients > 0, breaks=breaks)
    spans = _spans(signals, fused, rows, join(updating, *loops))
    recurrent_calls = int(named(signals.trace, rows, _RECURRENT).sum()) // steps
    return EagerSteps(fused, gradients, spans, recurrent_calls, breaks // steps, max(saving_ns, 0))


def _breaks(signals: Signals, rows: Int32, outermost: Int32) -> int:
    """How often the steps ask for what a tensor holds, between operators of their forward pass."""
    trace, events = signals.trace, signals.trace.events
    forward = outermost[~named(trace, outermost, _NODES) & ~named(trace, outermost, _ASKS)]
    asking = rows[named(trace, rows, _DECISIONS)]
    keeps_size = np.zeros(len(events), dtype=np.bool_)
    keeps_size[rows] = named(trace, rows, _KEEPS_SIZE)
    asking = asking[~has_ancestor(events.parent, asking, keeps_size)]
    count = signals.steps.owner.max(initial=-1) + 1
    first, last = np.full(count, np.iinfo(np.int64).max), np.full(count, -1)
    step, start_ns = signals.steps.owner[forward], events.start_ns[forward]
    np.minimum.at(first, step, start_ns)
    np.maximum.at(last, step, start_ns)
    step, start_ns = signals.steps.owner[asking], events.start_ns[asking]
    return int(((start_ns > first[step]) & (start_ns < last[step])).sum())


def _spans(signals: Signals, fused: Int32, rows: Int32, others: Intervals) -> Intervals:
    """When fused operators run, with the short gaps of idle time before them."""
    events = signals.trace.events
    if not len(fused):
        return EMPTY
    running = events.spans(fused)
    place = np.searchsorted(rows, fused)
    before = np.maximum(place - 1, 0)
    gap_start, gap_end = events.end_ns[rows[before]], events.start_ns[fused]
    longest_ns = stretched_ns(_LONGEST_GAP_NS, signals.trace)
    is_short = (place > 0) & (gap_end > gap_start) & (gap_end - gap_start <= longest_ns)
    return minus(join(running, union(gap_start[is_short], gap_end[is_short])), others)
