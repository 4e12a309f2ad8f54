"""Where the framework's operators run: on the device or on the host.

An operator runs on the device if it, or an operator inside it, launched device work. It runs on the
host if devices have kernels for its computation, but neither it nor an operator inside it launched
anything, outside the input pipeline. Operators with other names are not judged.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.trace import BUSY_KINDS, EventKind, Totals, Trace
from tb_perfadvisor.trace.integer_groups import distinct, is_in, row_mask
from tb_perfadvisor.trace.intervals import Intervals, contains
from tb_perfadvisor.trace.nesting import nearest, with_enclosing
from tb_perfadvisor.trace.tables import Int32

# Operators that compute on tensors, by name without overloads. All other names count as views,
# queries or bookkeeping. Sources: PyTorch's native_functions.yaml and TensorFlow's op registry.
_PYTORCH = regex(
    r"^aten::_?("
    r"mm|bmm|(addmm|baddbmm|addbmm|addmv)_?|mv|dot|matmul|linear|einsum|bilinear"
    r"|(thnn_|mkldnn_|slow_)?conv(olution)?\w*|conv_transpose\w*"
    r"|scaled_dot_product_\w+|multi_head_attention\w*|lstm|gru|rnn_\w+"
    r"|(native_)?(batch|layer|group|instance|weight)_norm\w*|rms_norm\w*"
    r"|(adaptive_)?(avg|max)_pool\w*|upsample_\w+|interpolate|grid_sampler\w*"
    r"|(log_)?softmax(_backward_data)?|(relu|gelu|silu|elu|selu|leaky_relu|sigmoid|tanh|softplus"
    r"|hardswish|mish|threshold)(_backward)?_?"
    r"|(add|sub|rsub|mul|div|neg|abs|exp|log|log1p|sqrt|rsqrt|pow|square|sin|cos|erf|clamp\w*"
    r"|floor|ceil|round|reciprocal|addcmul|addcdiv|lerp|maximum|minimum|remainder|fmod|atan2)_?"
    r"|(eq|ne|lt|le|gt|ge|logical_\w+|bitwise_\w+|where|masked_fill_?|isnan|isinf|isfinite)"
    r"|sum|mean|prod|var|std|norm|linalg_\w+|cumsum|cumprod|logsumexp|max|min|amax|amin"
    r"|argmax|argmin|any|all|sort|topk|argsort|unique\w*|nonzero|histc|bincount"
    r"|gather|index(_select|_add_?|_copy_?|_put_?(impl_)?)?|scatter\w*|take|masked_select"
    r"|embedding(_bag|_dense_backward)?|one_hot|cat|stack|roll|flip|tril|triu|repeat\w*"
    r"|(native_)?dropout_?|bernoulli_?|multinomial|rand\w*|normal_?|uniform_?"
    r"|(nll|mse|l1|smooth_l1|binary_cross_entropy|cross_entropy|kl_div)(_loss)?\w*"
    r"|foreach_\w+|fused_(adam|adamw|sgd)\w*"
    r")$"
)
_TENSORFLOW = regex(
    r"^(matmul(v2|v3)?|batchmatmul(v2|v3)?|einsum|conv[123]d\w*|depthwiseconv2d\w*|biasadd\w*"
    r"|add|addv2|addn|sub|mul|realdiv|div|exp|log|sqrt|rsqrt|square|pow|maximum|minimum"
    r"|relu\w*|gelu|elu|sigmoid|tanh|softmax|logsoftmax|sum|mean|prod|max|min|cumsum|argmax"
    r"|fusedbatchnorm\w*|maxpool\w*|avgpool\w*|gatherv2|concatv2|tensorscatter\w*"
    r"|unsortedsegment\w+|sparsesegment\w+|randomuniform|randomstandardnormal|select(v2)?"
    r"|softmaxcrossentropywithlogits|sparsesoftmaxcrossentropywithlogits"
    r")$"
)
# Modules of PyTorch that run operators on tensors without data.
_TRACING_FRAME = regex(
    r"torch/(?:_subclasses/(?:fake|meta)|_dynamo/|fx/experimental/|distributed/(?:tensor/_|_tensor/)sharding_prop)"
)

Mask = NDArray[np.bool_]


class Placement(Struct, frozen=True):
    """Operators of the used window by where they run."""

    host_rows: Int32
    """Outermost operators that computed on the host, in order of start."""
    device_count: int
    """Number of innermost operators that launched work on the device."""
    host_count: int
    device_ns: int
    """Time of the device work that operators launched."""
    host_ns: int
    """Time of `host_rows`."""

    @property
    def share_by_count(self) -> float | None:
        """Share of the computing operators that run on the device; None without any."""
        total = self.device_count + self.host_count
        return self.device_count / total if total else None

    @property
    def share_by_time(self) -> float | None:
        """Device time as a share of device and host time; None without any."""
        total = self.device_ns + self.host_ns
        return self.device_ns / total if total else None


def find_placement(
    trace: Trace,
    launching_operator: Int32,
    input_waits: Intervals,
    is_used: Mask,
) -> Placement:
    """Operators of the used steps by where they run.

    `launching_operator` has the innermost operator around each event, shape (events,). Operators
    within `input_waits` belong to the input pipeline.
    """
    if trace.totals is not None:
        return _placement_of_totals(trace.totals)
    events = trace.events
    rows = trace.rows(EventKind.OPERATOR)
    rows = rows[is_used[rows]]
    # An XLA module has the same launch as the work that it covers.
    device_rows = trace.rows(*BUSY_KINDS)
    device_rows = device_rows[events.launched_by[device_rows] >= 0]
    operator = launching_operator[events.launched_by[device_rows]]
    reached = operator >= 0
    if not reached.any() and len(trace.rows(*BUSY_KINDS)):
        # A thread without operators launches the work: the operators that caused it are unknown.
        return Placement(rows[:0], device_count=0, host_count=0, device_ns=0, host_ns=0)
    device_rows, operator = device_rows[reached], operator[reached]
    is_launching = np.zeros(len(events), dtype=bool)
    is_launching[operator] = True
    # Also count launches whose device event was not recorded.
    unrecorded = launching_operator[trace.rows(EventKind.LAUNCH)]
    is_launching[unrecorded[unrecorded >= 0]] = True
    in_window = is_in(operator, rows)
    device_ns = int(events.duration_ns[device_rows[in_window]].sum())
    device_count = int(is_launching[rows].sum())

    # An operator with a launch anywhere inside runs on the device: mark all that enclose one.
    has_launch = with_enclosing(events.parent, np.flatnonzero(is_launching).astype(np.int32))
    names = events.name[rows]
    computing = [name for name in distinct(names).tolist() if computes(trace.strings[name])]
    host = rows[is_in(names, computing) & ~has_launch[rows]]
    host = host[~contains(input_waits, events.start_ns[host])]
    host = host[~_is_traced(trace, host, has_launch)]
    # Only the outermost computing operator counts: `aten::linear` holds `aten::addmm`.
    is_host = np.zeros(len(events), dtype=bool)
    is_host[host] = True
    outermost = host[~has_ancestor(events.parent, host, is_host)]
    return Placement(
        host_rows=outermost,
        device_count=device_count,
        host_count=len(outermost),
        device_ns=device_ns,
        host_ns=int(events.duration_ns[outermost].sum()),
    )


def _is_traced(trace: Trace, rows: Int32, has_launch: Mask) -> Mask:
    """Whether operators only propagate shapes and types, on tensors without data; shape (rows,).

    A compiler traces the program with such tensors. DTensor runs an operator on them before it runs
    the operator of the same name on the device.
    """
    events = trace.events
    is_repeated = np.zeros(len(rows), dtype=bool)
    at = events.parent[rows]
    while (at >= 0).any():
        is_repeated |= (at >= 0) & (events.name[at] == events.name[rows]) & has_launch[at]
        at = np.where(at >= 0, events.parent[at], -1)
    compiling = trace.rows(EventKind.COMPILE)
    spans = events.spans(compiling)
    frames = trace.rows(EventKind.PYTHON)
    names = distinct(events.name[frames]).tolist()
    tracing = [name for name in names if _TRACING_FRAME.search(trace.strings[name])]
    is_tracing = row_mask(len(events), frames[is_in(events.name[frames], tracing)])
    is_tracing[rows[is_repeated]] = True  # and so are the operators inside
    inside = has_ancestor(events.parent, rows, is_tracing)
    return is_repeated | contains(spans, events.start_ns[rows]) | inside


def _placement_of_totals(totals: Totals) -> Placement:
    """Operators by where they run, from the recorder's own sums.

    Functions of an input pipeline run operators on the host under the same names as the step's
    own. If there is a pipeline, sums cannot tell them apart, so nothing is counted.
    """
    device = [operator for operator in totals.operators if operator.is_on_device]
    host = [
        operator
        for operator in totals.operators
        if not operator.is_on_device and computes(operator.type)
    ]
    if totals.input_stages:
        device, host = [], []
    return Placement(
        host_rows=np.empty(0, dtype=np.int32),
        device_count=sum(operator.count for operator in device),
        host_count=sum(operator.count for operator in host),
        device_ns=sum(operator.self_ns for operator in device),
        host_ns=sum(operator.self_ns for operator in host),
    )


_FEW_ROWS = 4
"""Looking at all events takes as long as at a fourth of them, one by one."""
_FEW_LEVELS = 16


def has_ancestor(parent: Int32, rows: Int32, is_marked: Mask) -> Mask:
    """Whether an event around each row is marked; shape (rows,)."""
    found: Mask = innermost_marked(parent, parent[rows], is_marked) >= 0
    return found


def innermost_marked(parent: Int32, rows: Int32, is_marked: Mask) -> Int32:
    """The innermost marked event at or around each row; -1 for none, and for -1. Shape (rows,)."""
    if _FEW_ROWS * rows.size > parent.size:
        return np.where(rows >= 0, nearest(parent, is_marked)[rows], np.int32(-1))
    found = rows.astype(np.int32)
    is_open = np.flatnonzero((rows >= 0) & ~is_marked[rows])
    for _ in range(_FEW_LEVELS):
        if not is_open.size:
            return found
        found[is_open] = above = parent[found[is_open]]
        is_open = is_open[(above >= 0) & ~is_marked[above]]
    if is_open.size:
        found[is_open] = nearest(parent, is_marked)[found[is_open]]
    return found


def computes(name: str) -> bool:
    """Whether devices have a kernel for an operator of this name.

    TensorFlow writes `name:Type`; the type counts.
    """
    if "::" in name:
        return _PYTORCH.match(name) is not None
    return _TENSORFLOW.match(name.rpartition(":")[2].lower()) is not None
