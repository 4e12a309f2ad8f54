"""Operators that the framework runs one by one although it could compile them together."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.host.launch_gaps import LONGEST_LAUNCH_GAP_NS
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct, is_in, unique_inverse
from tb_perfadvisor.trace.intervals import (
    EMPTY,
    Intervals,
    contains,
    intersect,
    join,
    minus,
    union,
)
from tb_perfadvisor.trace.tables import Int32

_MANY_PER_STEP = 10
"""Keras runs three to five eager operators per compiled step, and JAX converts a few numbers."""

# Functions of jax.numpy and jax.lax are jitted individually: outside of a jit, each call is a
# program of one operator. Names of jax/_src/numpy (ufuncs, reductions, lax_numpy) and of
# jax/_src/lax primitives; as PjitFunction(NAME) in JAX 0.4 to 0.10.
_JAX_LIBRARY = frozenset(
    {
        *("abs", "absolute", "add", "all", "any", "arange", "argmax", "argmin"),
        *("array_equal", "astype", "bitwise_and", "bitwise_or", "broadcast_in_dim"),
        *("broadcast_to", "ceil", "clip", "concatenate", "convert_element_type", "cos"),
        *("cosh", "cumprod", "cumsum", "divide", "dot", "dynamic_slice"),
        *("dynamic_update_slice", "einsum", "equal", "erf", "exp", "exp2", "expand_dims"),
        *("expm1", "floor", "floor_divide", "gather", "gelu", "greater", "greater_equal"),
        *("integer_pow", "isfinite", "isnan", "less", "less_equal", "log", "log10", "log1p"),
        *("log2", "logical_and", "logical_not", "logical_or", "logistic", "logsumexp"),
        *("matmul", "max", "maximum", "mean", "min", "minimum", "mod", "multiply"),
        *("negative", "not_equal", "ones_like", "outer", "pad", "power", "prod", "relu"),
        *("remainder", "reshape", "rsqrt", "scatter", "sigmoid", "sign", "silu", "sin"),
        *("sinh", "softmax", "sort", "split", "sqrt", "square", "squeeze", "stack", "std"),
        *("subtract", "sum", "swapaxes", "take", "take_along_axis", "tan", "tanh"),
        *("tensordot", "tile", "transpose", "tril", "triu", "true_divide", "var", "where"),
        *("zeros_like"),
        *("_einsum", "_mean", "_moveaxis", "_multi_slice", "_pad", "_reduce_all"),
        *("_reduce_any", "_reduce_max", "_reduce_min", "_reduce_prod", "_reduce_sum", "_rem"),
        *("_softmax", "_split", "_squeeze", "_std", "_unstack", "_var", "_variance"),
        *("_where"),
    }
)


_PRIMITIVES = frozenset({"mul", "sub", "div", "neg", "max", "min", "reduce_sum", "select_n"})
"""Names of jax.lax functions that differ from jax.numpy's; derivatives consist of them."""

_FUSIBLE = frozenset({"loop fusion", "input fusion", "non-fusion elementwise", "copy", "reduce",
                      "broadcast", "transpose"})  # fmt: skip
"""Categories of XLA operations (xla/hlo/ir/hlo_instruction.cc, and XProf's for fusions)."""

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
    induce. On the CPU, idle time in and between them, and their time outside kernels."""
    fusible: Intervals
    """On the CPU, when only elementwise work and reductions of such operators run. A compiled
    program would fuse them with their neighbors, or run them in place."""


@memoized
def eager_calls(signals: Signals) -> EagerCalls:
    """TensorFlow's eager operators and JAX's library functions outside of any jit."""
    trace, window = signals.trace, signals.attribution
    events = trace.events
    rows = _outermost(trace, _calls(trace))
    at = events.start_ns[rows]
    rows = rows[(at >= window.window_start_ns) & (at < window.window_end_ns)]
    if len(rows) < _MANY_PER_STEP * signals.steps.count:
        return EagerCalls(rows[:0], EMPTY, EMPTY, EMPTY)
    spans = union(events.start_ns[rows], events.end_ns[rows])
    idle = signals.host_idle
    if signals.device.is_host_only:
        # Without a device, the gaps before and after a call are what the call costs.
        short = idle[idle[:, 1] - idle[:, 0] <= LONGEST_LAUNCH_GAP_NS]
        near = union(spans[:, 0] - LONGEST_LAUNCH_GAP_NS, spans[:, 1] + LONGEST_LAUNCH_GAP_NS)
        induced = join(intersect(idle, spans), intersect(short, near))
        if trace.source.framework == "jax":
            return EagerCalls(rows, spans, induced, _fusible(trace))
        kernels = _kernel_runs(trace)
        induced = join(induced, minus(spans, kernels)) if len(kernels) else induced
        return EagerCalls(rows, spans, induced, minus(_element_wise(trace), induced))
    gaps = window.idle
    launch = gaps.launch_row
    ended = (launch >= 0) & contains(spans, events.start_ns[launch]) & ~gaps.is_queued
    ended &= gaps.end_ns - gaps.start_ns <= LONGEST_LAUNCH_GAP_NS
    induced = intersect(idle, union(gaps.start_ns[ended], gaps.end_ns[ended]))
    return EagerCalls(rows, spans, minus(induced, signals.synchronizations.induced), EMPTY)


def _fusible(trace: Trace) -> Intervals:
    """When only operations run that XLA fuses with their neighbors.

    Programs are named after their function, as in `jit_multiply(38)`, and operations have a
    category. Products and convolutions take the same time when they are fused.
    """
    hlo, strings, events = trace.hlo, trace.strings, trace.events
    is_eager = np.array([_is_library(strings[name]) for name in hlo.module.tolist()], dtype=bool)
    is_fusible = np.array(
        [category >= 0 and strings[category] in _FUSIBLE for category in hlo.category.tolist()],
        dtype=bool,
    )
    rows, op = trace.hlo_events.row, trace.hlo_events.op
    fusible = rows[(is_eager & is_fusible)[op]]
    other = rows[~(is_eager & is_fusible)[op]]
    return minus(
        union(events.start_ns[fusible], events.end_ns[fusible]),
        union(events.start_ns[other], events.end_ns[other]),
    )


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
    name = module.partition("(")[0].removeprefix("jit_")
    return name in _JAX_LIBRARY or name in _PRIMITIVES


@cache
def _pattern(framework: str) -> re.Pattern[str] | None:
    # A name with two leading underscores is a function: a compiled graph.
    if framework == "tensorflow":
        return re.compile(r"^EagerExecute: (?!__)(?P<name>\w+)$")
    if framework == "jax":
        return re.compile(r"^PjitFunction\((?P<name>\w+)\)$")
    return None


def _calls(trace: Trace) -> Int32:
    rows = trace.rows(EventKind.OPERATOR, EventKind.ANNOTATION)
    pattern = _pattern(trace.source.framework)
    if pattern is None:
        return rows[:0]
    is_jax = trace.source.framework == "jax"
    names = trace.events.name[rows]
    matching = []
    for name in distinct(names).tolist():
        match = pattern.match(trace.strings[name])
        if match and (not is_jax or match["name"] in _JAX_LIBRARY):
            matching.append(name)
    return rows[is_in(names, matching)]


def _outermost(trace: Trace, rows: Int32) -> Int32:
    """Drop calls inside other calls: each PjitFunction is recorded twice, nested."""
    events = trace.events
    spans = [rows[events.track[rows] == track] for track in distinct(events.track[rows]).tolist()]
    outer = []
    for track_rows in spans:
        reach = np.maximum.accumulate(events.end_ns[track_rows])
        first = np.ones(len(track_rows), dtype=bool)
        first[1:] = events.start_ns[track_rows][1:] >= reach[:-1]
        outer.append(track_rows[first])
    return np.sort(np.concatenate(outer)) if outer else rows
