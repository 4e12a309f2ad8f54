"""Operators that the framework runs one by one although it could compile them together."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.core.steps.launched_work import (
    LIBRARY,
    function_of,
    program_name,
    top_level_calls,
)
from tb_perfadvisor.signals.launch.delays import (
    LONGEST_LAUNCH_GAP_NS,
    accidental_gaps,
    stretched_ns,
)
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct, is_in, places_by_value, without
from tb_perfadvisor.trace.intervals import (
    EMPTY,
    Intervals,
    contains,
    intersect,
    join,
    minus,
    shared_ns,
    total_ns,
    union,
)
from tb_perfadvisor.trace.names import named
from tb_perfadvisor.trace.tables import Int32

_MANY_PER_STEP = 10
"""Keras runs three to five eager operators per compiled step, and JAX converts a few numbers."""

_PRIMITIVES = frozenset({"mul", "sub", "div", "neg", "max", "min", "reduce_sum", "select_n"})
"""Names of jax.lax functions that differ from jax.numpy's; derivatives consist of them."""

_FUSIBLE = frozenset({"loop fusion", "input fusion", "non-fusion elementwise", "copy", "reduce",
                      "broadcast", "transpose"})  # fmt: skip
"""Categories of XLA operations (xla/hlo/ir/hlo_instruction.cc, and XProf's for fusions)."""

# A name with two leading underscores is a function: a compiled graph.
_EAGER_OPERATOR = regex(r"^EagerExecute: (?!__)\w+$")
_INPUT_OPERATOR = regex(r"^EagerExecute: \w*(?:Dataset|Iterator)\w*$")
_WRITES_FILES = regex(r"^EagerExecute: (?:SaveV2|MergeV2Checkpoints|WriteFile|Write\w*Summary)$")
_FUNCTION = regex(r"^EagerExecute: __inference_\w+$")
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
_KERNEL_RUN = regex("^KernelAndDeviceFunc::Run$")
"""The kernel inside a TensorFlow eager operator; the rest of the operator prepares it."""
_FUSIBLE_NAMES = """
    _EagerConst Abs Add AddN AddV2 AssignAddVariableOp AssignSubVariableOp AssignVariableOp
    BiasAdd BiasAddGrad BroadcastTo Cast ClipByValue ConcatV2 Cos Div DivNoNan Elu EluGrad
    Equal Erf Exp ExpandDims Expm1 Fill FloorDiv Greater GreaterEqual Identity L2Loss LeakyRelu
    LeakyReluGrad Less LessEqual Log Log1p LogicalAnd LogicalNot LogicalOr LogSoftmax Max
    Maximum Mean Min Minimum Mul MulNoNan Neg NotEqual OnesLike Pack Pad PadV2 Pow Prod
    ReadVariableOp RealDiv Reciprocal Relu Relu6 Relu6Grad ReluGrad Reshape Rsqrt RsqrtGrad
    Select SelectV2 Selu SeluGrad Shape ShapeN Sigmoid SigmoidGrad Sign Sin Slice Softmax
    Softplus SoftplusGrad Split SplitV Sqrt SqrtGrad Square SquaredDifference Squeeze
    StridedSlice StridedSliceGrad Sub Sum Tanh TanhGrad Tile Transpose Unpack ZerosLike
"""
_FUSIBLE_OPERATOR = regex(rf"^Eager(?:Local)?Execute: (?:{'|'.join(_FUSIBLE_NAMES.split())})$")
"""TensorFlow's elementwise operators, reductions, and operators that only move elements or are gone
once a function is traced (tensorflow/core/ops: math_ops, nn_ops, array_ops)."""


_CALL_NS = {"tensorflow": (140_000, 200_000, 280_000), "jax": (5_000, 10_000, 33_000)}
"""What a call of a compiled step takes: at least, as expected, and at most. Processor time with
TensorFlow 2.21 and JAX 0.10 on a 2-core x86 virtual machine: a tf.function that adds or updates
two numbers 140 to 220 microseconds, four steps of public programs 180 to 270, and ten operators up
to 280; a jitted function of one array 5, of five 10, and of twenty-one 33."""


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
    """On the CPU, when only elementwise work, reductions or moves of such operators run. Compiled,
    they are fused with their neighbors, or run in place."""
    constants: Intervals
    """The part of `fusible` in which JAX fills arrays with a number. A compiled program stores no
    such array: what reads it reads the number."""
    called_ns: tuple[int, int, int] = (0, 0, 0)
    """What stays on the CPU, of all steps: calls of the compiled one, as in `_CALL_NS`."""


@memoized
def eager_calls(signals: Signals) -> EagerCalls:
    """TensorFlow's eager operators and JAX's library functions outside of any jit."""
    trace = signals.trace
    events = trace.events
    rows = _calls(trace)
    rows = signals.steps.own(rows)
    if len(rows) < _MANY_PER_STEP * signals.steps.count:
        return EagerCalls(rows[:0], EMPTY, EMPTY, EMPTY, EMPTY, EMPTY)
    spans = events.spans(rows)
    idle = signals.host_idle
    if signals.device.is_host_only:
        # Without a device, the gaps before and after a call are what the call costs.
        usual_ns = _LONGEST_PYTHON_NS.get(trace.source.framework, LONGEST_LAUNCH_GAP_NS)
        longest_ns = stretched_ns(usual_ns, trace)
        short = idle[idle[:, 1] - idle[:, 0] <= longest_ns]
        near = union(spans[:, 0] - longest_ns, spans[:, 1] + longest_ns)
        induced = join(intersect(idle, spans), intersect(short, near))
        kernels = _kernel_runs(trace) if trace.source.framework == "tensorflow" else EMPTY
        inside = minus(spans, kernels) if len(kernels) else EMPTY
        idle, induced = join(idle, inside), join(induced, inside)
        # The Python of a step that is mostly eager is the step's own: compiled, none of it runs.
        # What stops a program at any place stops mostly that.
        usual = minus(idle, accidental_gaps(signals))
        is_eager = shared_ns(induced, usual) > _EAGER_SHARE * total_ns(usual)
        owned = idle if is_eager else induced
        called_ns = _called_ns(signals)
        if trace.source.framework == "jax":
            return EagerCalls(rows, spans, owned, induced, *_fusible(trace), called_ns)
        fusible = minus(_fusible_operators(trace), owned)
        return EagerCalls(rows, spans, owned, induced, fusible, EMPTY, called_ns)
    gaps = signals.attribution.idle
    launch = gaps.launch_row
    ended = (launch >= 0) & contains(spans, events.start_ns[launch]) & ~gaps.is_queued
    ended &= gaps.end_ns - gaps.start_ns <= LONGEST_LAUNCH_GAP_NS
    induced = intersect(idle, union(gaps.start_ns[ended], gaps.end_ns[ended]))
    induced = minus(induced, signals.synchronizations.induced)
    return EagerCalls(rows, spans, induced, induced, EMPTY, EMPTY)


def _called_ns(signals: Signals) -> tuple[int, int, int]:
    """A step that calls a function of TensorFlow already needs no other call."""
    trace = signals.trace
    rows = signals.steps.own(trace.rows(EventKind.OPERATOR, EventKind.ANNOTATION))
    calls = max(signals.steps.count - int(named(trace, rows, _FUNCTION).sum()), 0)
    least, expected, most = (calls * ns for ns in _CALL_NS[trace.source.framework])
    return least, stretched_ns(expected, trace), stretched_ns(most, trace)


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
            events.spans(own),
            events.spans(other),
        )

    return only(is_eager & is_fusible), only(is_eager & is_fusible & fills)


def _fusible_operators(trace: Trace) -> Intervals:
    """When only operators of TensorFlow that can be fused run, outside of any graph."""
    events, rows = trace.events, trace.rows(EventKind.OPERATOR)
    is_fusible = named(trace, rows, _FUSIBLE_OPERATOR)
    fusible, other = rows[is_fusible], rows[~is_fusible]
    return minus(
        events.spans(fusible),
        events.spans(other),
    )


def _kernel_runs(trace: Trace) -> Intervals:
    events, rows = trace.events, trace.rows(EventKind.ANNOTATION)
    rows = rows[named(trace, rows, _KERNEL_RUN)]
    return events.spans(rows)


def _is_library(module: str) -> bool:
    name = program_name(module).removeprefix("jit_")
    return name in LIBRARY or name in _PRIMITIVES


def _calls(trace: Trace) -> Int32:
    if trace.source.framework == "jax":
        rows = top_level_calls(trace)
        names = trace.events.name[rows]
        called = [n for n in distinct(names).tolist() if function_of(trace.strings[n]) in LIBRARY]
        return rows[is_in(names, called)]
    if trace.source.framework == "tensorflow":
        rows = trace.rows(EventKind.OPERATOR, EventKind.ANNOTATION)
        rows = _outermost(trace, rows[named(trace, rows, _EAGER_OPERATOR)])
        # Compiled, saving variables takes as long, and fetching input is no part of the step.
        rows = without(rows, rows[named(trace, rows, _INPUT_OPERATOR)])
        return without(rows, _writing(trace, rows))
    return np.empty(0, dtype=np.int32)


def _writing(trace: Trace, rows: Int32) -> Int32:
    """The operators in runs of which any writes files."""
    events = trace.events
    rows = rows[np.lexsort((events.start_ns[rows], events.track[rows]))]
    apart_ns = (
        np.diff(events.start_ns[rows], prepend=0) - np.append(0, events.duration_ns[rows])[:-1]
    )
    begins = (apart_ns > _BESIDE_NS) | (np.diff(events.track[rows], prepend=-1) != 0)
    run = np.cumsum(begins)
    found: Int32 = np.sort(rows[np.isin(run, run[named(trace, rows, _WRITES_FILES)])])
    return found


class FileWrites(Struct, frozen=True):
    """TensorFlow's eager operators that write summaries or checkpoints, with those beside them."""

    rows: Int32
    """On the thread of the steps, in the used window."""
    spans: Intervals
    """From the first of them after a compiled function to the last before the next one."""


@memoized
def file_writes(signals: Signals) -> FileWrites:
    """The operators that write files, if the step is a compiled function."""
    trace, events = signals.trace, signals.trace.events
    rows = trace.rows(EventKind.OPERATOR, EventKind.ANNOTATION)
    rows = rows[events.track[rows] == signals.step_track]
    functions = signals.steps.own(rows[named(trace, rows, _FUNCTION)])
    rows = _writing(trace, _outermost(trace, rows[named(trace, rows, _EAGER_OPERATOR)]))
    rows = signals.steps.own(rows)[: len(rows) * (len(functions) >= signals.steps.count)]
    part = np.searchsorted(events.start_ns[functions], events.start_ns[rows])
    first = np.flatnonzero(np.diff(part, prepend=-1))
    last_ns = np.maximum.reduceat(events.end_ns[rows], first) if len(rows) else first
    return FileWrites(rows, union(events.start_ns[rows[first]], last_ns))


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
