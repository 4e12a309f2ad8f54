"""Operators that the framework runs one by one although it could compile them together."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.core.steps.launched_work import (
    LIBRARY,
    function_of,
    program_name,
    top_level_calls,
)
from tb_perfadvisor.signals.launch.delays import LONGEST_LAUNCH_GAP_NS, stretched_ns
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.event_names import named
from tb_perfadvisor.trace.integer_groups import distinct, is_in, places_by_value, unique_inverse
from tb_perfadvisor.trace.intervals import (
    EMPTY,
    Intervals,
    contains,
    intersect,
    join,
    minus,
    total_ns,
    union,
)
from tb_perfadvisor.trace.tables import Int32

_MANY_PER_STEP = 10
"""Keras runs three to five eager operators per compiled step, and JAX converts a few numbers."""

_PRIMITIVES = frozenset({"mul", "sub", "div", "neg", "max", "min", "reduce_sum", "select_n"})
"""Names of jax.lax functions that differ from jax.numpy's; derivatives consist of them."""

_FUSIBLE = frozenset({"loop fusion", "input fusion", "non-fusion elementwise", "copy", "reduce",
                      "broadcast", "transpose"})  # fmt: skip
"""Categories of XLA operations (xla/hlo/ir/hlo_instruction.cc, and XProf's for fusions)."""

# A name with two leading underscores is a function: a compiled graph.
_EAGER_OPERATOR = re.compile(r"^EagerExecute: (?!__)\w+$")
_WRITES_FILES = re.compile(
    r"^EagerExecute: (?:SaveV2|MergeV2Checkpoints|WriteFile|Write\w*Summary)$"
)
_FILLS = frozenset({"jit_broadcast_in_dim", "jit_full_like", "jit_ones_like", "jit_zeros_like"})

_LONGEST_PYTHON_NS = {"tensorflow": 5_000_000, "jax": 5_000_000}
"""Between two eager operators, Keras and the tracing of derivatives run up to some milliseconds of
Python on a busy machine: optimizers, losses, metrics and rules of derivatives. A compiled step runs
none of it. In three loops on the
CPU, tf.function left 0.65 to 1 times the time of the operators' kernels: 1.95 of 20.6 ms, 13.9 of
26.4 and 27 of 73 (TensorFlow 2.21)."""

_EAGER_SHARE = 0.5
"""Of the idle time of a step: with more of it between eager operators, no other code decides it."""
_BESIDE_NS = 2_000_000
"""Between the operators that save one checkpoint."""
_KERNEL_RUN = "KernelAndDeviceFunc::Run"
"""The kernel inside a TensorFlow eager operator; the rest of the operator prepares it."""
_TENSORFLOW_FUSIBLE = frozenset(
    {
        *("Abs", "Add", "AddN", "AddV2", "BiasAdd", "BiasAddGrad", "BroadcastTo", "Cast"),
        *("ClipByValue", "Cos", "Div", "DivNoNan", "Elu", "EluGrad", "Equal", "Erf", "Exp"),
        *("Expm1", "Fill", "FloorDiv", "Greater", "GreaterEqual", "LeakyRelu"),
        *("LeakyReluGrad", "Less", "LessEqual", "Log", "Log1p", "LogicalAnd", "LogicalNot"),
        *("LogicalOr", "LogSoftmax", "Max", "Maximum", "Mean", "Min", "Minimum", "Mul"),
        *("MulNoNan", "Neg", "NotEqual", "OnesLike", "Pow", "Prod", "RealDiv", "Reciprocal"),
        *("Relu", "Relu6", "Relu6Grad", "ReluGrad", "Rsqrt", "RsqrtGrad", "Select"),
        *("SelectV2", "Selu", "SeluGrad", "Sigmoid", "SigmoidGrad", "Sign", "Sin", "Softmax"),
        *("Softplus", "SoftplusGrad", "Sqrt", "SqrtGrad", "Square", "SquaredDifference"),
        *("Sub", "Sum", "Tanh", "TanhGrad", "Tile", "Transpose", "ZerosLike"),
    }
)
"""TensorFlow's elementwise operators and reductions (tensorflow/core/ops: math_ops, nn_ops)."""


class EagerCalls(Struct, frozen=True):
    """Operators that run one by one, if there are many per step."""

    rows: Int32
    """The outermost calls in the used window; empty if there are few."""
    spans: Intervals
    idle: Intervals
    """On a device, idle time that ends with a launch of one of them, without what synchronizations
    induce. On the CPU, idle time in and between them, and their time outside kernels; of a step
    that is mostly eager, all of its idle time."""
    sure: Intervals
    """The part of `idle` in calls and in short gaps beside them."""
    fusible: Intervals
    """On the CPU, when only elementwise work and reductions of such operators run. A compiled
    program would fuse them with their neighbors, or run them in place."""
    constants: Intervals
    """The part of `fusible` in which JAX fills arrays with a number. A compiled program stores no
    such array: what reads it reads the number."""


@memoized
def eager_calls(signals: Signals) -> EagerCalls:
    """TensorFlow's eager operators and JAX's library functions outside of any jit."""
    trace = signals.trace
    events = trace.events
    rows = _calls(trace)
    rows = signals.steps.own(rows)
    if len(rows) < _MANY_PER_STEP * signals.steps.count:
        return EagerCalls(rows[:0], EMPTY, EMPTY, EMPTY, EMPTY, EMPTY)
    spans = union(events.start_ns[rows], events.end_ns[rows])
    idle = signals.host_idle
    if signals.device.is_host_only:
        # Without a device, the gaps before and after a call are what the call costs.
        usual_ns = _LONGEST_PYTHON_NS.get(trace.source.framework, LONGEST_LAUNCH_GAP_NS)
        longest_ns = stretched_ns(usual_ns, trace)
        short = idle[idle[:, 1] - idle[:, 0] <= longest_ns]
        near = union(spans[:, 0] - longest_ns, spans[:, 1] + longest_ns)
        induced = join(intersect(idle, spans), intersect(short, near))
        # The Python of a step that is mostly eager is the step's own: compiled, none of it runs.
        is_eager = total_ns(induced) > _EAGER_SHARE * total_ns(idle)
        owned = idle if is_eager else induced
        if trace.source.framework == "jax":
            return EagerCalls(rows, spans, owned, induced, *_fusible(trace))
        kernels = _kernel_runs(trace)
        inside = minus(spans, kernels) if len(kernels) else EMPTY
        owned, induced = join(owned, inside), join(induced, inside)
        return EagerCalls(rows, spans, owned, induced, minus(_element_wise(trace), owned), EMPTY)
    gaps = signals.attribution.idle
    launch = gaps.launch_row
    ended = (launch >= 0) & contains(spans, events.start_ns[launch]) & ~gaps.is_queued
    ended &= gaps.end_ns - gaps.start_ns <= LONGEST_LAUNCH_GAP_NS
    induced = intersect(idle, union(gaps.start_ns[ended], gaps.end_ns[ended]))
    induced = minus(induced, signals.synchronizations.induced)
    return EagerCalls(rows, spans, induced, induced, EMPTY, EMPTY)


def _fusible(trace: Trace) -> tuple[Intervals, Intervals]:
    """When only operations run that XLA fuses with their neighbors, and which of them fill arrays.

    Programs are named after their function, as in `jit_multiply(38)`, and operations have a
    category. Products and convolutions take the same time when they are fused.
    """
    hlo, strings, events = trace.hlo, trace.strings, trace.events
    is_eager = np.array([_is_library(strings[name]) for name in hlo.module.tolist()], dtype=bool)
    is_fusible = np.array(
        [category >= 0 and strings[category] in _FUSIBLE for category in hlo.category.tolist()],
        dtype=bool,
    )
    fills = np.array([program_name(strings[name]) in _FILLS for name in hlo.module.tolist()], bool)
    rows, op = trace.hlo_events.row, trace.hlo_events.op

    def only(chosen: NDArray[np.bool_]) -> Intervals:
        own, other = rows[chosen[op]], rows[~chosen[op]]
        return minus(
            union(events.start_ns[own], events.end_ns[own]),
            union(events.start_ns[other], events.end_ns[other]),
        )

    return only(is_eager & is_fusible), only(is_eager & is_fusible & fills)


def _element_wise(trace: Trace) -> Intervals:
    """When only elementwise operators of TensorFlow run, outside of any graph."""
    events, rows = trace.events, trace.rows(EventKind.OPERATOR)
    names, name = unique_inverse(events.name[rows])
    of_name = [
        _operation(trace.strings[name_id]) in _TENSORFLOW_FUSIBLE for name_id in names.tolist()
    ]
    is_fusible = np.array(of_name, dtype=bool)[name]
    fusible, other = rows[is_fusible], rows[~is_fusible]
    return minus(
        union(events.start_ns[fusible], events.end_ns[fusible]),
        union(events.start_ns[other], events.end_ns[other]),
    )


def _operation(name: str) -> str:
    """`Relu` from `EagerExecute: Relu`, and from the inner `EagerLocalExecute: Relu`."""
    kind, _, operation = name.partition(": ")
    return operation if kind in ("EagerExecute", "EagerLocalExecute") else ""


def _kernel_runs(trace: Trace) -> Intervals:
    events, rows = trace.events, trace.rows(EventKind.ANNOTATION)
    named = [
        name_id
        for name_id in distinct(events.name[rows]).tolist()
        if trace.strings[name_id] == _KERNEL_RUN
    ]
    rows = rows[is_in(events.name[rows], named)]
    return union(events.start_ns[rows], events.end_ns[rows])


def _is_library(module: str) -> bool:
    name = program_name(module).removeprefix("jit_")
    return name in LIBRARY or name in _PRIMITIVES


def _calls(trace: Trace) -> Int32:
    if trace.source.framework == "jax":
        rows = top_level_calls(trace)
        return rows[_is_named(trace, rows, lambda name: function_of(name) in LIBRARY)]
    if trace.source.framework == "tensorflow":
        rows = trace.rows(EventKind.OPERATOR, EventKind.ANNOTATION)
        rows = rows[_is_named(trace, rows, lambda name: bool(_EAGER_OPERATOR.match(name)))]
        return _without_writing(trace, _outermost(trace, rows))
    return np.empty(0, dtype=np.int32)


def _without_writing(trace: Trace, rows: Int32) -> Int32:
    """Drop runs of operators that write files: compiled, saving variables takes as long."""
    writes = named(trace, rows, _WRITES_FILES)
    if not writes.any():
        return rows
    events = trace.events
    rows = rows[np.lexsort((events.start_ns[rows], events.track[rows]))]
    apart_ns = (
        np.diff(events.start_ns[rows], prepend=0) - np.append(0, events.duration_ns[rows])[:-1]
    )
    begins = (apart_ns > _BESIDE_NS) | (np.diff(events.track[rows], prepend=-1) != 0)
    run = np.cumsum(begins)
    kept: Int32 = np.sort(rows[~np.isin(run, run[named(trace, rows, _WRITES_FILES)])])
    return kept


def _is_named(trace: Trace, rows: Int32, is_wanted: Callable[[str], bool]) -> NDArray[np.bool_]:
    names = trace.events.name[rows]
    wanted = [name for name in distinct(names).tolist() if is_wanted(trace.strings[name])]
    return is_in(names, wanted)


def _outermost(trace: Trace, rows: Int32) -> Int32:
    """Drop calls inside other calls."""
    events = trace.events
    outer = []
    for _, places in places_by_value(events.track[rows]):
        track_rows = rows[places]
        reach = np.maximum.accumulate(events.end_ns[track_rows])
        first = np.ones(len(track_rows), dtype=bool)
        first[1:] = events.start_ns[track_rows][1:] >= reach[:-1]
        outer.append(track_rows[first])
    return np.sort(np.concatenate(outer)) if outer else rows
